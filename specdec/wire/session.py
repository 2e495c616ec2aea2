"""Hop 2, verifier to drafter: what a verifier says of a session, and what the drafter answers beside its drafts.

Each value stands here once, with its way to protobuf and back; both services work with these values. Draft tokens are
in `draft`.
"""

from dataclasses import dataclass
from enum import StrEnum

from protos.drafter.v1 import drafter_pb2 as pb
from specdec.rules.params import Mode, SamplingParams
from specdec.wire.params import mode_from_pb, mode_to_pb, sampling_from_pb, sampling_to_pb
from specdec.wire.tokens import tokens_from_bytes, tokens_to_bytes


@dataclass(frozen=True, slots=True)
class Open:
    """Begins a session, or begins it again, from a known prefix, and asks for its first draft."""

    session_id: str
    epoch: int
    """Fencing number of the session's owner."""
    tokens: tuple[int, ...]
    """The prompt, then the output that is committed already."""
    prompt_len: int
    """How many of `tokens` are the prompt."""
    params: SamplingParams
    mode: Mode
    gamma: int
    """How many draft tokens are wanted behind `tokens`."""
    max_len: int
    """Length the sequence may reach, in tokens."""
    cache_salt: str = ""
    """Only sessions of one salt share computed prefixes."""


@dataclass(frozen=True, slots=True)
class Commit:
    """The tokens that the target committed, which asks for the next draft."""

    session_id: str
    epoch: int
    """Fencing number of the session's owner."""
    base_len: int
    """Committed length before `tokens`."""
    tokens: tuple[int, ...]
    gamma: int
    """How many draft tokens are wanted behind `tokens`."""


@dataclass(frozen=True, slots=True)
class Close:
    """Ends a session."""

    session_id: str
    epoch: int
    """Fencing number of the session's owner."""


@dataclass(frozen=True, slots=True)
class DraftEnd:
    """Says that no more drafts come for a session's current prefix."""

    session_id: str
    epoch: int
    """Fencing number of the session's owner."""
    base_len: int
    """Length of that prefix, committed and drafted tokens together."""


class NackReason(StrEnum):
    """Why a drafter does not serve a session."""

    UNKNOWN = "unknown"
    """The session was never opened at the drafter, or the drafter has forgotten it."""
    STALE = "stale"
    """The message is of an older epoch, or does not continue the committed tokens."""
    OVERLOADED = "overloaded"
    """The drafter has no memory for the session, or no place for one more."""
    MALFORMED = "malformed"
    """One of the two sides sent a message that makes no sense."""
    INTERNAL = "internal"
    """Drafting failed, and the drafter has forgotten the session."""


@dataclass(frozen=True, slots=True)
class Nack:
    """Refuses to serve a session."""

    session_id: str
    epoch: int
    """Fencing number of the refused message."""
    reason: NackReason
    detail: str
    """A sentence for the log."""


@dataclass(frozen=True, slots=True)
class Load:
    """How busy a drafter is."""

    sessions: int
    """Open sessions."""
    step_seconds: float
    """Recent mean seconds of one draft step over the whole batch."""


_REASONS: dict[NackReason, pb.Nack.Reason.ValueType] = {
    NackReason.UNKNOWN: pb.Nack.REASON_UNKNOWN,
    NackReason.STALE: pb.Nack.REASON_STALE,
    NackReason.OVERLOADED: pb.Nack.REASON_OVERLOADED,
    NackReason.MALFORMED: pb.Nack.REASON_MALFORMED,
    NackReason.INTERNAL: pb.Nack.REASON_INTERNAL,
}
_REASONS_BACK = {number: reason for reason, number in _REASONS.items()}


def open_to_pb(message: Open) -> pb.Open:
    """The message that opens a session."""
    return pb.Open(
        session_id=message.session_id,
        epoch=message.epoch,
        tokens=tokens_to_bytes(message.tokens),
        prompt_len=message.prompt_len,
        sampling=sampling_to_pb(message.params),
        mode=mode_to_pb(message.mode),
        gamma=message.gamma,
        max_len=message.max_len,
        cache_salt=message.cache_salt,
    )


def open_from_pb(message: pb.Open) -> Open:
    """The value of a message that opens a session.

    Raises:
        RequestError: a field makes no sense; the error names it.
    """
    return Open(
        session_id=message.session_id,
        epoch=message.epoch,
        tokens=tuple(tokens_from_bytes(message.tokens)),
        prompt_len=message.prompt_len,
        params=sampling_from_pb(message.sampling),
        mode=mode_from_pb(message.mode),
        gamma=message.gamma,
        max_len=message.max_len,
        cache_salt=message.cache_salt,
    )


def commit_to_pb(message: Commit) -> pb.Commit:
    """The message of a commit."""
    return pb.Commit(
        session_id=message.session_id,
        epoch=message.epoch,
        base_len=message.base_len,
        tokens=tokens_to_bytes(message.tokens),
        gamma=message.gamma,
    )


def commit_from_pb(message: pb.Commit) -> Commit:
    """The value of a commit's message.

    Raises:
        FieldInvalid: the bytes of the tokens are not token ids.
    """
    tokens = tuple(tokens_from_bytes(message.tokens))
    return Commit(message.session_id, message.epoch, message.base_len, tokens, message.gamma)


def close_to_pb(message: Close) -> pb.Close:
    """The message that closes a session."""
    return pb.Close(session_id=message.session_id, epoch=message.epoch)


def close_from_pb(message: pb.Close) -> Close:
    """The value of a message that closes a session."""
    return Close(message.session_id, message.epoch)


def end_to_pb(end: DraftEnd) -> pb.DraftEnd:
    """The message that ends a session's drafts."""
    return pb.DraftEnd(session_id=end.session_id, epoch=end.epoch, base_len=end.base_len)


def end_from_pb(message: pb.DraftEnd) -> DraftEnd:
    """The value of a message that ends a session's drafts."""
    return DraftEnd(message.session_id, message.epoch, message.base_len)


def nack_to_pb(nack: Nack) -> pb.Nack:
    """The message of a refusal."""
    return pb.Nack(session_id=nack.session_id, epoch=nack.epoch, reason=_REASONS[nack.reason], detail=nack.detail)


def nack_from_pb(message: pb.Nack) -> Nack:
    """The value of a refusal's message; a reason that this build does not know counts as malformed."""
    reason = _REASONS_BACK.get(message.reason, NackReason.MALFORMED)
    return Nack(message.session_id, message.epoch, reason, message.detail)


def load_to_pb(load: Load) -> pb.Load:
    """The message that says how busy a drafter is."""
    return pb.Load(sessions=load.sessions, step_seconds=load.step_seconds)


def load_from_pb(message: pb.Load) -> Load:
    """The value of a message that says how busy a drafter is."""
    return Load(message.sessions, message.step_seconds)
