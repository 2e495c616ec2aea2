"""Converts replies of the session scripts to values, or to the errors that their status words denote."""

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
"""Answers to an accepted round or lease, and whether its turn was cancelled."""

_Value = TypeVar("_Value")


def understood(value_of: Callable[[Reply], _Value], reply: Reply) -> _Value:
    """Return the value of a reply or raise the error that it denotes; raises SessionStoreDown if it is malformed."""
    try:
        return value_of(reply)
    except SpecdecError:
        raise
    except Exception as error:
        raise SessionStoreDown(f"a reply of the session store makes no sense: {error!r}") from error


def done(reply: Reply) -> None:
    """Read a reply of CREATE or DELETE; raises if the session is missing."""
    match reply:
        case [b"OK"]:
            return
    raise missing(reply)


def secret(reply: Reply) -> bytes:
    """Read a reply of SECRET: the installation's secret."""
    match reply:
        case [b"OK", bytes() as known]:
            return known
    raise ValueError(reply)


def session_view(reply: Reply) -> SessionView:
    """Read a reply of GET: the session."""
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
    """Read a reply of READ: the turn."""
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
    """Read a reply of OPEN: the turn; `limit` is the longest log in tokens."""
    match reply:
        case [b"OK" | b"DUP" as word, turn]:
            return Opened(int(turn), repeated=word == b"DUP")
        case [word, *rest]:
            raise open_refusal(word, rest, limit)
    raise ValueError(reply)


def lease(reply: Reply) -> Lease:
    """Read a reply of ACQUIRE: the lease."""
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
    """Read a reply of COMMIT: for each round, whether its turn was cancelled, or its error."""
    return [
        _PLAIN[answer] if answer in _PLAIN else _outcome(answer, each.epoch, each.base)
        for answer, each in zip(_answers(reply), rounds, strict=True)
    ]


def renewals(reply: Reply, leases: Sequence[tuple[str, int]]) -> list[bool | SpecdecError]:
    """Read a reply of RENEW: for each lease, whether its turn was cancelled, or its error."""
    return [
        _PLAIN[answer] if answer in _PLAIN else _outcome(answer, epoch)
        for answer, (_, epoch) in zip(_answers(reply), leases, strict=True)
    ]


def was_done(reply: Reply, otherwise: bytes) -> bool:
    """Read a reply of CANCEL or RELEASE: True for OK, False for the word `otherwise`."""
    match reply:
        case [word] if word in (b"OK", otherwise):
            return bool(word == b"OK")
    raise missing(reply)


def lapsed_turn(reply: Reply, session_id: str) -> LapsedTurn | None:
    """Read a reply of LAPSED_TURN: the turn, or None if it has not lapsed."""
    match reply:
        case [b"OK", tenant, turn, silent]:
            return LapsedTurn(session_id, tenant.decode(), int(turn), int(silent) / 1000)
        case [b"LIVE" | b"NONE"]:
            return None
    raise ValueError(reply)


def open_refusal(word: bytes, rest: Reply, limit: int) -> SpecdecError:
    """Return the error for a reply of OPEN other than OK and DUP; `limit` is the longest log in tokens."""
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
    """Return the error for an answer GAP, MISMATCH, CORRUPT or SPOILED.

    Args:
        word: the answer.
        base: start of the round, in tokens.
        n: length of the store's log, in tokens.
    """
    why = {
        b"SPOILED": "the store's keys of the session are not what was written",
        b"GAP": f"the round starts at token {base}, but the store has only {n}: it lost some",
        b"MISMATCH": f"the round starts at token {base} and differs from what the store has up to {n}",
    }
    return SessionDiverged(why.get(word, f"the store's log does not have the {n} tokens it should"))


def fenced(epoch: int) -> Fenced:
    """Return the error of an owner whose epoch is not current."""
    return Fenced(f"epoch {epoch} is over: the session has a newer owner, or is gone")


def missing(reply: Reply) -> SpecdecError:
    """Return the error for a reply about a missing session or turn; raises ValueError for any other reply."""
    match reply:
        case [b"EXPIRED"]:
            return expired()
        case [b"NONE" | b"NOSESSION" | b"DENIED"]:
            return not_found()
    raise ValueError(reply)


def not_found() -> SessionNotFound:
    """Return the error for a session that does not exist or belongs to another tenant, which look the same."""
    return SessionNotFound("no such session", "session")


def expired() -> SessionExpired:
    """Return the error for a session whose tokens have expired."""
    return SessionExpired("its tokens are not kept any more")


def _answers(reply: Reply) -> list[bytes]:
    match reply:
        case [b"OK", bytes() as joined]:
            return joined.split(b",")
    raise ValueError(reply)


def _outcome(answer: bytes, epoch: int, base: int = 0) -> SpecdecError:
    """Return the error that an answer of COMMIT or RENEW denotes; raises ValueError for an unknown answer."""
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
    except FieldInvalid as error:  # elsewhere a caller's mistake, here a malformed reply
        raise ValueError(error.message) from error
