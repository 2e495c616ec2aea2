"""What a verifier tells a drafter about a session, between protobuf and values."""

from dataclasses import dataclass

from protos.drafter.v1 import drafter_pb2 as pb
from specdec.rules.params import Mode, SamplingParams
from specdec.wire.params import mode_from_pb, mode_to_pb, sampling_from_pb, sampling_to_pb
from specdec.wire.tokens import tokens_from_bytes, tokens_to_bytes


@dataclass(frozen=True, slots=True)
class Open:
    """Begins a session, or begins it again, from a known prefix, and asks for its first draft."""

    session_id: str
    epoch: int
    tokens: tuple[int, ...]
    """Prompt and committed output."""
    prompt_len: int
    params: SamplingParams
    mode: Mode
    gamma: int
    max_len: int
    """Length the sequence may reach."""
    cache_salt: str = ""
    """KV is shared with sessions of the same salt only."""


@dataclass(frozen=True, slots=True)
class Commit:
    """What the target committed, and how many drafts are wanted behind it."""

    session_id: str
    epoch: int
    base_len: int
    """Committed length before `tokens`."""
    tokens: tuple[int, ...]
    gamma: int


@dataclass(frozen=True, slots=True)
class Close:
    """Ends a session."""

    session_id: str
    epoch: int


def open_to_pb(message: Open) -> pb.Open:
    """Pack."""
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


def open_from_pb(wire: pb.Open) -> Open:
    """Unpack.

    Raises:
        RequestError: it names the field that makes no sense.
    """
    return Open(
        session_id=wire.session_id,
        epoch=wire.epoch,
        tokens=tuple(tokens_from_bytes(wire.tokens)),
        prompt_len=wire.prompt_len,
        params=sampling_from_pb(wire.sampling),
        mode=mode_from_pb(wire.mode),
        gamma=wire.gamma,
        max_len=wire.max_len,
        cache_salt=wire.cache_salt,
    )


def commit_to_pb(message: Commit) -> pb.Commit:
    """Pack."""
    return pb.Commit(
        session_id=message.session_id,
        epoch=message.epoch,
        base_len=message.base_len,
        tokens=tokens_to_bytes(message.tokens),
        gamma=message.gamma,
    )


def commit_from_pb(wire: pb.Commit) -> Commit:
    """Unpack.

    Raises:
        FieldInvalid: the tokens make no sense.
    """
    return Commit(wire.session_id, wire.epoch, wire.base_len, tuple(tokens_from_bytes(wire.tokens)), wire.gamma)


def close_to_pb(message: Close) -> pb.Close:
    """Pack."""
    return pb.Close(session_id=message.session_id, epoch=message.epoch)


def close_from_pb(wire: pb.Close) -> Close:
    """Unpack."""
    return Close(wire.session_id, wire.epoch)
