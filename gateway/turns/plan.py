"""A request once the model's facts are known: everything resolved, nothing left to refuse."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gateway.priority import PriorityClass
from gateway.request import GenerationRequest, cache_domain, check_ids
from gateway.verifiers.verifier import Call, VerifierInfo
from specdec.errors import ContextLengthExceeded, FieldRequired, GammaTooLarge, ModelNotFound
from specdec.rules.params import Mode, SamplingParams, Speculation


@dataclass(frozen=True, slots=True)
class Plan:
    """What the verifier is asked for."""

    prompt: tuple[int, ...]
    sampling: SamplingParams
    max_tokens: int
    """Output length at which the generation ends."""
    stop_token_ids: tuple[int, ...]
    """The model's own end ids among them, unless they are to be ignored."""
    speculation: Speculation
    stop: tuple[str, ...]
    logprobs: int | None
    """How many likely tokens are reported beside each of the output; None is no logprobs."""
    priority: PriorityClass = PriorityClass.DEFAULT
    cache_salt: str = ""
    """Only generations of one salt share computed prefixes."""

    def call(self, session_id: str, epoch: int, tokens: Sequence[int]) -> Call:
        """For the rest of the generation, behind prompt and committed tokens."""
        return Call(
            session_id=session_id,
            epoch=epoch,
            tokens=tuple(tokens),
            prompt_len=len(self.prompt),
            sampling=self.sampling,
            max_tokens=self.max_tokens,
            stop_token_ids=self.stop_token_ids,
            speculation=self.speculation,
            logprobs=self.logprobs,
            priority=self.priority.level,
            cache_salt=self.cache_salt,
        )


def check_model(asked: str, served: str) -> None:
    """Raise ModelNotFound unless `asked` is empty or the model served."""
    if asked not in ("", served):
        raise ModelNotFound(f"model {asked!r} is not served here; {served!r} is", "model")


def make_plan(request: GenerationRequest, prompt: Sequence[int], info: VerifierInfo, mode: Mode) -> Plan:
    """Check the request against the model and fill in what the caller left out.

    Args:
        prompt: the request's prompt in token ids.
        mode: the rule for a request that names none.

    Raises:
        TokenOutOfRange: an id is not in the vocabulary.
        ContextLengthExceeded: prompt, or prompt and max_tokens, do not fit.
        GammaTooLarge: over the model's limit.
        FieldInvalid: no token may be drawn, or the mode allows no lenience.
        FieldRequired: the prompt came to no token at all.
    """
    if not prompt:
        raise FieldRequired("prompt has no tokens", "prompt")
    check_ids(prompt, "prompt", info.vocab_size)
    check_ids(request.stop_token_ids, "stop_token_ids", info.vocab_size)
    for name, ids in request.sampling.named_ids.items():
        check_ids(tuple(ids), name, info.vocab_size)
    _check_gamma(request.gamma, info.gamma_max)
    ends = () if request.ignore_eos else info.end_token_ids
    stop_token_ids = tuple(dict.fromkeys((*ends, *request.stop_token_ids)))
    sampling = replace(request.sampling, end_token_ids=stop_token_ids)
    sampling.check_choice(info.vocab_size)
    return Plan(
        prompt=tuple(prompt),
        sampling=sampling,
        max_tokens=_max_tokens(request, len(prompt), info.context_length),
        stop_token_ids=stop_token_ids,
        speculation=Speculation(_mode(request, mode), request.gamma, request.lenience),
        stop=request.stop,
        logprobs=request.logprobs,
        priority=request.priority,
        cache_salt=cache_domain(request.tenant, request.cache_salt),
    )


def _mode(request: GenerationRequest, default: Mode) -> Mode:
    """The rule: under coupled mode, and plain, the tokens depend on seed and target alone, not on when drafts came."""
    if request.mode is None and request.seeded and default is not Mode.OFF:
        return Mode.COUPLED
    return request.mode or default


def _check_gamma(gamma: int | None, limit: int) -> None:
    if gamma is not None and gamma > limit:
        raise GammaTooLarge(f"gamma must be at most {limit}, got {gamma}", "speculation.gamma")


def _max_tokens(request: GenerationRequest, prompt: int, context: int) -> int:
    room = context - prompt
    if room < 1:
        raise ContextLengthExceeded(
            f"the prompt has {prompt} tokens; the model's context is {context} tokens, prompt and output together",
            "prompt",
        )
    if request.max_tokens is not None and request.max_tokens > room:
        raise ContextLengthExceeded(
            f"max_tokens is {request.max_tokens}, but beside a prompt of {prompt} tokens "
            f"the model's context of {context} has room for {room}",
            "max_tokens",
        )
    return min(room, request.max_tokens or request.cap_tokens or room)
