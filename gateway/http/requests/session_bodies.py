"""Bodies and answers of the endpoints that name a session or a generation."""

from typing import Annotated, Literal

from pydantic import BaseModel, WithJsonSchema

from gateway.http.requests.body import Body
from gateway.http.requests.fields import BOUND, ModelName, Name
from gateway.turns.sessions import SessionInfo

Seconds = Annotated[float, WithJsonSchema({"type": "number", "minimum": 1, BOUND: "ttl"})]


class SessionBody(Body):
    """POST /v1/sessions."""

    model: ModelName | None = None
    user: Name | None = None
    ttl: Seconds | None = None


class SessionReply(BaseModel):
    """Snapshot of a session."""

    id: str
    object: Literal["session"] = "session"
    model: str
    turn: int
    """Turns begun so far: the next request's `expect_turn`."""
    tokens: int
    """Committed tokens of all turns."""
    state: Literal["idle", "generating"]
    generation: str | None
    """The id of its last turn's generation; null before the first turn."""
    expires_in: float
    """Seconds until it is deleted, unless it is used before."""


class SessionPage(BaseModel):
    """GET /v1/sessions: sessions, newest first."""

    object: Literal["list"] = "list"
    data: list[SessionReply]
    has_more: bool
    last_id: str | None


class Deleted(BaseModel):
    """DELETE /v1/sessions/{id}."""

    id: str
    object: Literal["session.deleted"] = "session.deleted"
    deleted: Literal[True] = True


class Cancelled(BaseModel):
    """DELETE /v1/generations/{id}."""

    id: str
    object: Literal["generation.cancelled"] = "generation.cancelled"
    cancelled: bool
    """False when it had ended already."""


def session_reply(session: SessionInfo) -> SessionReply:
    """The session as the HTTP API shows it."""
    return SessionReply(
        id=session.id,
        model=session.model,
        turn=session.turn,
        tokens=session.tokens,
        state="generating" if session.generating else "idle",
        generation=f"{session.id}-{session.turn}" if session.turn else None,
        expires_in=session.expires_in,
    )
