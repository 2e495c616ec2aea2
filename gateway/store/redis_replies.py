"""Turns the replies of the session scripts into values, or into the errors that their first word stands for."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from gateway.store.checked_scripts import Reply
from gateway.store.values import (
    LapsedTurn,
    Lease,
    Opened,
    RoundCommit,
    SessionState,
    SessionView,
    StoredRound,
    TurnView,
)
from specdec.errors import (
    ContextLengthExceeded,
    Fenced,
    FieldInvalid,
    IdempotencyKeyReused,
    SessionBusy,
    SessionDiverged,
    SessionExpired,
    SessionHeld,
    SessionNotFound,
    SessionStoreDown,
    SpecdecError,
    TurnConflict,
    TurnOver,
)
from specdec.wire.tokens import tokens_from_bytes

_PLAIN = {b"OK ": False, b"DUP ": False, b"OK 1": True, b"DUP 1": True}
"""The answers to a round or a lease that was taken: whether its turn was cancelled."""

_Value = TypeVar("_Value")


def understood(value_of: Callable[[Reply], _Value], reply: Reply) -> _Value:
    """The value of a reply, or the error that it stands for; raises SessionStoreDown when it makes no sense."""
    try:
        return value_of(reply)
    except SpecdecError:
        raise
    except Exception as error:
        raise SessionStoreDown(f"a reply of the session store makes no sense: {error!r}") from error


def done(reply: Reply) -> None:
    """CREATE and DELETE: nothing, or the session is missing."""
    match reply:
        case [b"OK"]:
            return
    raise missing(reply)


def secret(reply: Reply) -> bytes:
    """SECRET: the secret of the installation."""
    match reply:
        case [b"OK", bytes() as known]:
            return known
    raise ValueError(reply)


def session_view(reply: Reply) -> SessionView:
    """GET: the session."""
    match reply:
        case [b"OK", turn, state, n, fingerprint, left, seen]:
            return SessionView(
                turn=int(turn),
                state=SessionState(state.decode()),
                n=int(n),
                model_fingerprint=fingerprint.decode(),
                expires_in=max(0, int(left)) / 1000,
                request_turn=int(seen) if seen else None,
            )
    raise missing(reply)


def turn_view(reply: Reply) -> TurnView:
    """READ: the turn."""
    match reply:
        case [b"OK", state, left, prompt, entries]:
            events = [dict(zip(flat[::2], flat[1::2], strict=True)) for _, flat in entries]
            params = events.pop(0)[b"p"] if events and b"p" in events[0] else b""
            return TurnView(
                state=SessionState(state.decode()),
                lease_left=int(left) / 1000,
                prompt=_tokens(prompt),
                params=params,
                rounds=tuple(map(_round, events)),
            )
    raise missing(reply)


def opened(reply: Reply, limit: int) -> Opened:
    """OPEN: the turn; `limit` is the longest log in tokens."""
    match reply:
        case [b"OK" | b"DUP" as word, turn]:
            return Opened(int(turn), repeated=word == b"DUP")
        case [word, *rest]:
            raise open_refusal(word, rest, limit)
    raise ValueError(reply)


def lease(reply: Reply) -> Lease:
    """ACQUIRE: the ownership."""
    match reply:
        case [b"OK", epoch, n]:
            return Lease(epoch=int(epoch), n=int(n))
        case [b"OVER", turn]:
            raise TurnOver(f"turn {int(turn)} is the last, and done or not the one asked for")
        case [b"HELD", left]:
            seconds = int(left) / 1000
            raise SessionHeld(f"another gateway has the session for {seconds:.1f} s more", seconds)
    raise missing(reply)


def outcomes(reply: Reply, rounds: Sequence[RoundCommit]) -> list[bool | SpecdecError]:
    """COMMIT: for each round, whether its turn was cancelled, or the error of that round."""
    return [
        _PLAIN[answer] if answer in _PLAIN else _outcome(answer, each.epoch, each.base)
        for answer, each in zip(_answers(reply), rounds, strict=True)
    ]


def renewals(reply: Reply, leases: Sequence[tuple[str, int]]) -> list[bool | SpecdecError]:
    """RENEW: for each lease, whether its turn was cancelled, or the error of that lease."""
    return [
        _PLAIN[answer] if answer in _PLAIN else _outcome(answer, epoch)
        for answer, (_, epoch) in zip(_answers(reply), leases, strict=True)
    ]


def was_done(reply: Reply, otherwise: bytes) -> bool:
    """CANCEL and RELEASE: True; False for the word `otherwise`."""
    match reply:
        case [word] if word in (b"OK", otherwise):
            return bool(word == b"OK")
    raise missing(reply)


def lapsed_turn(reply: Reply, session_id: str) -> LapsedTurn | None:
    """LAPSED_TURN: the turn; None when it is none."""
    match reply:
        case [b"OK", tenant, turn, silent]:
            return LapsedTurn(session_id, tenant.decode(), int(turn), int(silent) / 1000)
        case [b"LIVE" | b"NONE"]:
            return None
    raise ValueError(reply)


def open_refusal(word: bytes, rest: Reply, limit: int) -> SpecdecError:
    """The error for a reply of OPEN other than OK and DUP; `limit` is the longest log in tokens."""
    match word:
        case b"BUSY":
            return SessionBusy(
                f"turn {int(rest[0])} of the session is still being generated: wait for it, or cancel it"
            )
        case b"CONFLICT":
            return TurnConflict(f"the session has {int(rest[0])} turns by now: another writer was first")
        case b"REUSED":
            return IdempotencyKeyReused("this idempotency key came before, with another request")
        case b"MODEL":
            return FieldInvalid("the session was opened with another model", "model")
        case b"TOOLONG":
            return ContextLengthExceeded(f"the session may hold {limit} tokens and has {int(rest[0])}", "prompt")
        case b"EXPIRED":
            return expired()
        case b"DENIED":
            return not_found()
    raise ValueError(word)


def diverged(word: bytes, base: int, n: int) -> SessionDiverged:
    """The error for an answer GAP, MISMATCH, CORRUPT or SPOILED.

    Args:
        base: where the round starts, in tokens.
        n: the length of the log that the store knows of.
    """
    why = {
        b"SPOILED": "the store's keys of the session are not what was written",
        b"GAP": f"the round starts at token {base}, but the store has only {n}: it lost some",
        b"MISMATCH": f"the round starts at token {base} and differs from what the store has up to {n}",
    }
    return SessionDiverged(why.get(word, f"the store's log does not have the {n} tokens it should"))


def fenced(epoch: int) -> Fenced:
    """The error of an owner whose epoch is not the current one."""
    return Fenced(f"epoch {epoch} is over: the session has a newer owner, or is gone")


def missing(reply: Reply) -> SpecdecError:
    """The error for a reply that says that something is not there; raises ValueError for any other."""
    match reply:
        case [b"EXPIRED"]:
            return expired()
        case [b"NONE" | b"NOSESSION" | b"DENIED"]:
            return not_found()
    raise ValueError(reply)


def not_found() -> SessionNotFound:
    """The error for a session that does not exist or is another tenant's; the caller cannot tell these apart."""
    return SessionNotFound("no such session", "session")


def expired() -> SessionExpired:
    """The error for a session whose tokens are not kept any more."""
    return SessionExpired("its tokens are not kept any more")


def _answers(reply: Reply) -> list[bytes]:
    match reply:
        case [b"OK", bytes() as joined]:
            return joined.split(b",")
    raise ValueError(reply)


def _outcome(answer: bytes, epoch: int, base: int = 0) -> SpecdecError:
    """The error that an answer of COMMIT or RENEW stands for; raises ValueError where it is none."""
    match answer.split():
        case [b"FENCED"]:
            return fenced(epoch)
        case [b"GAP" | b"MISMATCH" | b"CORRUPT" as word, n]:
            return diverged(word, base, int(n))
        case [b"SPOILED" as word]:
            return diverged(word, base, 0)
        case [b"NOSESSION"]:
            return not_found()
    raise ValueError(answer)


def _round(fields: dict[bytes, bytes]) -> StoredRound:
    return StoredRound(_tokens(fields[b"t"]), fields[b"f"].decode(), fields[b"r"])


def _tokens(data: bytes) -> tuple[int, ...]:
    try:
        return tuple(tokens_from_bytes(data))
    except FieldInvalid as error:  # which is a mistake of a caller elsewhere
        raise ValueError(error.message) from error
