"""Hop 1, gateway to verifier: what a generation asks for, what each round answers, what the verifier says of itself.

Each value stands here once, with the way to protobuf and back beside it; both services work with these values.
"""

from dataclasses import dataclass
from enum import StrEnum

from protos.verifier.v1 import verifier_pb2 as pb
from specdec.rules.logprobs import TokenLogprobs
from specdec.rules.params import FinishReason, Origin, SamplingParams, Speculation
from specdec.wire.logprobs import logprobs_from_pb, logprobs_to_pb
from specdec.wire.params import (
    finish_from_pb,
    finish_to_pb,
    mode_from_pb,
    mode_to_pb,
    origin_from_pb,
    origin_to_pb,
    sampling_from_pb,
    sampling_to_pb,
)
from specdec.wire.tokens import tokens_from_bytes, tokens_to_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationCall:
    """One generation, or the rest of one, with every choice made."""

    session_id: str = ""
    epoch: int = 0
    """Fencing number of the session's owner."""
    tokens: tuple[int, ...]
    """The prompt, then the output that is committed already."""
    prompt_len: int
    sampling: SamplingParams
    max_tokens: int
    """Output length, committed tokens included, at which the generation ends."""
    stop_token_ids: tuple[int, ...]
    """Ids that end the generation, the model's own among them unless they are to be ignored."""
    speculation: Speculation
    logprobs: int | None = None
    """How many likely tokens are reported beside each committed one; None reports no log probabilities."""
    priority: int = 0
    """Place in the queue: less goes first; it counts as time waited."""
    cache_salt: str = ""
    """Only generations of one salt share computed prefixes."""


class Fallback(StrEnum):
    """Why a round that wanted a draft had none."""

    NONE = ""
    UNAVAILABLE = "drafter_unavailable"
    TIMEOUT = "draft_timeout"
    TOKENIZER = "tokenizer_mismatch"
    OVERLOADED = "overloaded"


@dataclass(frozen=True, slots=True)
class Timing:
    """Where the time of one round went, in seconds."""

    draft: float = 0.0
    """Waiting for the draft."""
    queue: float = 0.0
    """Waiting for a place in a batch."""
    verify: float = 0.0
    """Target pass and verdict of the whole batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One draft and its verdict: what a round commits."""

    base_len: int
    """Committed length before this round."""
    tokens: tuple[int, ...] = ()
    """At least one, except in a round that does nothing but end a generation."""
    origins: tuple[Origin, ...] = ()
    """Where each of `tokens` came from."""
    draft: tuple[int, ...] = ()
    accepted: int = 0
    """Drafts among `tokens`."""
    finish: FinishReason | None = None
    """Set on the last round."""
    fallback: str = ""
    """A `Fallback`, or a reason that only a newer verifier knows."""
    timing: Timing = Timing()
    logprobs: tuple[TokenLogprobs, ...] = ()
    """Of `tokens`; empty when nobody asked."""


@dataclass(frozen=True, slots=True)
class DrafterState:
    """One drafter as its verifier sees it."""

    address: str
    state: str
    """`ready`, `connecting`, or `refused: ` and why."""
    model: str
    """Empty until known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierInfo:
    """The target model and its limits."""

    model: str
    tokenizer_hash: str
    vocab_size: int
    """Ids below this are valid."""
    context_length: int
    """Longest sequence, prompt and output together."""
    end_token_ids: tuple[int, ...]
    gamma_max: int
    """Longest draft."""
    system_fingerprint: str
    """Of weights, dtype and code: a generation may move between verifiers that share it."""
    drafters: tuple[DrafterState, ...] = ()
    prefill_rate: float = 0.0
    """Prompt tokens computed in a second, as measured; 0 while unknown."""


def call_to_pb(call: GenerationCall) -> pb.GenerateRequest:
    """The request that RPC 1 sends."""
    return pb.GenerateRequest(
        session_id=call.session_id,
        epoch=call.epoch,
        tokens=tokens_to_bytes(call.tokens),
        prompt_len=call.prompt_len,
        sampling=sampling_to_pb(call.sampling),
        max_tokens=call.max_tokens,
        stop_token_ids=call.stop_token_ids,
        speculation=pb.Speculation(
            mode=mode_to_pb(call.speculation.mode),
            gamma=call.speculation.gamma,
            lenience=call.speculation.lenience,
        ),
        logprobs=call.logprobs,
        priority=call.priority,
        cache_salt=call.cache_salt,
    )


def call_from_pb(message: pb.GenerateRequest) -> GenerationCall:
    """The call of a request.

    Raises:
        FieldInvalid: a field is out of range, or no mode is set.
    """
    speculation = message.speculation
    return GenerationCall(
        session_id=message.session_id,
        epoch=message.epoch,
        tokens=tuple(tokens_from_bytes(message.tokens)),
        prompt_len=message.prompt_len,
        sampling=sampling_from_pb(message.sampling),
        max_tokens=message.max_tokens,
        stop_token_ids=tuple(message.stop_token_ids),
        speculation=Speculation(
            mode=mode_from_pb(speculation.mode),
            gamma=speculation.gamma if speculation.HasField("gamma") else None,
            lenience=speculation.lenience if speculation.HasField("lenience") else 1.0,
        ),
        logprobs=message.logprobs if message.HasField("logprobs") else None,
        priority=message.priority,
        cache_salt=message.cache_salt,
    )


def round_to_pb(done: Round) -> pb.GenerateResponse:
    """The message of a round."""
    return pb.GenerateResponse(
        base_len=done.base_len,
        tokens=tokens_to_bytes(done.tokens),
        origins=[origin_to_pb(origin) for origin in done.origins],
        draft_tokens=tokens_to_bytes(done.draft),
        accepted=done.accepted,
        finish_reason=finish_to_pb(done.finish),
        fallback_reason=done.fallback,
        timing=pb.RoundTiming(draft=done.timing.draft, queue=done.timing.queue, verify=done.timing.verify),
        logprobs=logprobs_to_pb(done.logprobs),
    )


def round_from_pb(message: pb.GenerateResponse) -> Round:
    """The round of a message.

    Raises:
        FieldInvalid: an array is broken.
    """
    return Round(
        base_len=message.base_len,
        tokens=tuple(tokens_from_bytes(message.tokens)),
        origins=tuple(origin_from_pb(origin) for origin in message.origins),
        draft=tuple(tokens_from_bytes(message.draft_tokens)),
        accepted=message.accepted,
        finish=finish_from_pb(message.finish_reason),
        fallback=message.fallback_reason,
        timing=Timing(message.timing.draft, message.timing.queue, message.timing.verify),
        logprobs=logprobs_from_pb(message.logprobs),
    )


def info_to_pb(info: VerifierInfo) -> pb.GetVerifierInfoResponse:
    """The answer that describes a verifier."""
    return pb.GetVerifierInfoResponse(
        model=info.model,
        tokenizer_hash=info.tokenizer_hash,
        vocab_size=info.vocab_size,
        context_length=info.context_length,
        end_token_ids=info.end_token_ids,
        gamma_max=info.gamma_max,
        drafters=[pb.DrafterState(address=each.address, state=each.state, model=each.model) for each in info.drafters],
        system_fingerprint=info.system_fingerprint,
        prefill_rate=info.prefill_rate,
    )


def info_from_pb(message: pb.GetVerifierInfoResponse) -> VerifierInfo:
    """What a verifier says of itself."""
    return VerifierInfo(
        model=message.model,
        tokenizer_hash=message.tokenizer_hash,
        vocab_size=message.vocab_size,
        context_length=message.context_length,
        end_token_ids=tuple(message.end_token_ids),
        gamma_max=message.gamma_max,
        system_fingerprint=message.system_fingerprint,
        drafters=tuple(DrafterState(each.address, each.state, each.model) for each in message.drafters),
        prefill_rate=message.prefill_rate,
    )
