"""One generation as a caller asked for it, and the limits it must keep before it may touch the model."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from specdec.errors import ContextLengthExceeded, FieldInvalid, FieldRequired, GammaTooLarge, TokenOutOfRange
from specdec.rules.params import Mode, SamplingParams, Speculation, check_logprobs


@dataclass(frozen=True, slots=True)
class Limits:
    """What the model and the server allow."""

    vocab_size: int
    context_length: int
    gamma_max: int


@dataclass(frozen=True, slots=True)
class Job:
    """One generation, or the rest of one."""

    session_id: str
    epoch: int
    tokens: tuple[int, ...]
    """Prompt, then the output committed before."""
    prompt_len: int
    params: SamplingParams
    max_tokens: int
    """Output length at which the generation ends."""
    end_ids: frozenset[int]
    """Ids that end it."""
    speculation: Speculation
    logprobs: int | None = None
    """How many likely tokens are reported beside each committed one; None is no logprobs."""
    priority: int = 0
    """See `verifier_service.batching.batch_plan.rank`."""
    cache_salt: str = ""
    """KV is shared with jobs of the same salt only."""

    @property
    def may_speculate(self) -> bool:
        """Whether drafts are wanted at all."""
        return self.speculation.mode is not Mode.OFF and self.speculation.gamma != 0

    @property
    def rule(self) -> Mode:
        """How drafts are drawn and judged.

        At temperature 0 every exact mode commits the target's likeliest tokens, and coupled drafts need no q̂.
        """
        mode = self.speculation.mode
        if self.params.temperature > 0.0 or self.speculation.lenience < 1.0 or mode is Mode.OFF:
            return mode
        return Mode.COUPLED

    def length_limit(self, context_length: int) -> int:
        """The sequence length at which the generation ends at the latest."""
        return min(self.prompt_len + self.max_tokens, context_length)


def check(job: Job, limits: Limits) -> None:
    """Refuse what would hurt the process or the other sessions of a batch.

    Raises:
        RequestError: the one that names the field.
    """
    if not job.session_id:
        raise FieldRequired("session_id must not be empty", "session_id")
    if not job.tokens:
        raise FieldRequired("tokens must not be empty", "tokens")
    if not 0 < job.prompt_len <= len(job.tokens):
        raise FieldInvalid(f"prompt_len must be in 1..{len(job.tokens)}, got {job.prompt_len}", "prompt_len")
    _check_length(job, limits.context_length)
    for field, ids in _ids(job):
        _check_ids(field, ids, limits.vocab_size)
    job.params.check_choice(limits.vocab_size)
    check_logprobs(job.logprobs)
    gamma = job.speculation.gamma
    if gamma is not None and gamma > limits.gamma_max:
        raise GammaTooLarge(f"gamma is at most {limits.gamma_max} here, got {gamma}", "speculation.gamma")


def _check_length(job: Job, context_length: int) -> None:
    if job.prompt_len >= context_length or len(job.tokens) > context_length:
        longest = max(job.prompt_len, len(job.tokens))
        raise ContextLengthExceeded(f"{longest} tokens do not fit a context of {context_length}", "tokens")


def _ids(job: Job) -> Iterator[tuple[str, Iterable[int]]]:
    yield "tokens", job.tokens
    yield "stop_token_ids", job.end_ids
    for field, ids in job.params.named_ids.items():
        yield f"sampling.{field}", ids


def _check_ids(field: str, ids: Iterable[int], vocab_size: int) -> None:
    outside = next((token for token in ids if not 0 <= token < vocab_size), None)
    if outside is not None:
        raise TokenOutOfRange(f"{field}: {outside} is not in 0..{vocab_size - 1}", field)
