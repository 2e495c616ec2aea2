"""Turns the replies of the session scripts into values, or into the errors that their first word stands for."""

from gateway.store.redis_scripts import Reply
from gateway.store.values import SessionState, SessionView, StoredRound, TurnView
from specdec.errors import (
    ContextLengthExceeded,
    Fenced,
    FieldInvalid,
    IdempotencyKeyReused,
    SessionBusy,
    SessionDiverged,
    SessionExpired,
    SessionNotFound,
    SpecdecError,
)
from specdec.wire.tokens import tokens_from_bytes


def session_view(fields: Reply) -> SessionView:
    """The value in an OK reply of GET."""
    turn, state, n, fingerprint, left, seen = fields
    return SessionView(
        turn=int(turn),
        state=SessionState(state.decode()),
        n=int(n),
        model_fingerprint=fingerprint.decode(),
        expires_in=max(0, int(left)) / 1000,
        request_turn=int(seen) if seen else None,
    )


def turn_view(fields: Reply) -> TurnView:
    """The value in an OK reply of READ."""
    state, left, prompt, entries = fields
    events = [dict(zip(flat[::2], flat[1::2], strict=True)) for _, flat in entries]
    params = events.pop(0)[b"p"] if events and b"p" in events[0] else b""
    return TurnView(
        state=SessionState(state.decode()),
        lease_left=int(left) / 1000,
        prompt=tuple(tokens_from_bytes(prompt)),
        params=params,
        rounds=tuple(map(_round, events)),
    )


def open_refusal(word: bytes, rest: Reply, limit: int) -> SpecdecError:
    """The error for a reply of OPEN other than OK and DUP; `limit` is the longest log in tokens."""
    match word:
        case b"BUSY":
            return SessionBusy(
                f"turn {int(rest[0])} of the session is still being generated: wait for it, or cancel it"
            )
        case b"CONFLICT":
            return SessionBusy(f"the session has {int(rest[0])} turns by now: another writer was first")
        case b"REUSED":
            return IdempotencyKeyReused("this idempotency key came before, with another request")
        case b"MODEL":
            return FieldInvalid("the session was opened with another model", "model")
        case b"TOOLONG":
            return ContextLengthExceeded(f"the session may hold {limit} tokens and has {int(rest[0])}", "prompt")
        case b"EXPIRED":
            return expired()
        case _:
            return not_found()


def diverged(word: bytes, base: int, n: int) -> SessionDiverged:
    """The error for a reply GAP, MISMATCH or CORRUPT of COMMIT.

    Args:
        base: where the round starts, in tokens.
        n: the length of the log that the store knows of.
    """
    why = {
        b"GAP": f"the round starts at token {base}, but the store has only {n}: it lost some",
        b"MISMATCH": f"the round starts at token {base} and differs from what the store has up to {n}",
    }
    return SessionDiverged(why.get(word, f"the store's log does not have the {n} tokens it should"))


def fenced(epoch: int) -> Fenced:
    """The error of an owner whose epoch is not the current one."""
    return Fenced(f"epoch {epoch} is over: the session has a newer owner, or is gone")


def missing(word: bytes) -> SpecdecError:
    """The error for the reply EXPIRED, and for NONE and NOSESSION."""
    return expired() if word == b"EXPIRED" else not_found()


def not_found() -> SessionNotFound:
    """The error for a session that does not exist or is another tenant's; the caller cannot tell these apart."""
    return SessionNotFound("no such session", "session")


def expired() -> SessionExpired:
    """The error for a session whose tokens are not kept any more."""
    return SessionExpired("its tokens are not kept any more")


def _round(fields: dict[bytes, bytes]) -> StoredRound:
    return StoredRound(tuple(tokens_from_bytes(fields[b"t"])), fields[b"f"].decode(), fields[b"r"])
