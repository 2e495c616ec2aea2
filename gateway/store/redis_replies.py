"""From the replies of the session scripts to values, or to the errors they stand for."""

from gateway.store.redis_scripts import Reply
from gateway.store.sessions import SessionState, SessionView, StoredRound, TurnView
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
    """Of LOOK's OK."""
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
    """Of READ's OK."""
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
    """Of OPEN's other words; `limit` is the longest log in tokens."""
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
    """Of COMMIT's refusals that are no fence."""
    why = {
        b"GAP": f"the round starts at token {base}, but the store has only {n}: it lost some",
        b"MISMATCH": f"the round starts at token {base} and differs from what the store has up to {n}",
    }
    return SessionDiverged(why.get(word, f"the store's log does not have the {n} tokens it should"))


def fenced(epoch: int) -> Fenced:
    """The epoch is not the session's any more."""
    return Fenced(f"epoch {epoch} is over: the session has a newer owner, or is gone")


def missing(word: bytes) -> SpecdecError:
    """Of the words that say there is nothing to read or to own."""
    return expired() if word == b"EXPIRED" else not_found()


def not_found() -> SessionNotFound:
    """Never was, long gone, or another tenant's: the caller is not told which."""
    return SessionNotFound("no such session", "session")


def expired() -> SessionExpired:
    """It was there."""
    return SessionExpired("its tokens are not kept any more")


def _round(fields: dict[bytes, bytes]) -> StoredRound:
    return StoredRound(tuple(tokens_from_bytes(fields[b"t"])), fields[b"f"].decode(), fields[b"r"])
