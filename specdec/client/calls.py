"""Calls with one answer: sessions, models, tokens, and the end of a generation."""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from specdec.client.request_message import filled, prompt_to_pb
from specdec.client.requests import ChatOptions, Prompt
from specdec.protos.gateway.v1 import gateway_pb2 as pb
from specdec.protos.gateway.v1.gateway_pb2_grpc import GenerationServiceStub, ModelServiceStub, SessionServiceStub
from specdec.wire.codec import Codec

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoredSession:
    """Conversation that the gateways store."""

    id: str
    model: str
    turn: int
    """Number of turns begun: the `expect_turn` of the next request."""
    tokens: int
    """Number of committed tokens of all turns."""
    generating: bool
    """Whether its last turn is being generated."""
    expires_in: float
    """Seconds until it is deleted, unless it is used."""


@dataclass(frozen=True, slots=True)
class StoredSessions:
    """Page of a user's sessions, newest first."""

    sessions: tuple[StoredSession, ...]
    next_page_token: str
    """Token of the next page; empty on the last one."""


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """A served model and its limits."""

    id: str
    context_length: int
    """Longest sequence, in tokens."""
    vocab_size: int
    gamma_max: int
    """Largest draft length."""
    tokenizer_hash: str


@dataclass(frozen=True, slots=True)
class TokenizedPrompt:
    """Token ids of a prompt."""

    token_ids: tuple[int, ...]
    context_length: int
    """Longest sequence of the model, in tokens."""


@dataclass(frozen=True, slots=True)
class UnaryCall(Generic[T]):
    """A call with one answer. It is idempotent, so it may be repeated."""

    method: Callable[[Any], Any]
    """Function from a channel to the method of its stub."""
    request: Any
    read: Callable[[Any], T]
    """Function from the answer to its value."""


_SESSION = Codec(StoredSession, pb.Session)
_MODEL = Codec(ModelLimits, pb.Model)
_TOKENS = Codec(TokenizedPrompt, pb.TokenizeResponse)


def create_session(model: str, user: str, ttl: float | None, request_id: str) -> UnaryCall[StoredSession]:
    # A key needs a user. Without one, a repeated call may leave a second session, which expires.
    key = request_id or (str(uuid.uuid4()) if user else "")
    request = filled(pb.CreateSessionRequest(), {"model": model, "user": user, "ttl": ttl, "request_id": key})
    return UnaryCall(lambda to: SessionServiceStub(to).CreateSession, request, lambda a: _SESSION.from_pb(a.session))


def get_session(session: str, user: str) -> UnaryCall[StoredSession]:
    request = pb.GetSessionRequest(id=session, user=user)
    return UnaryCall(lambda to: SessionServiceStub(to).GetSession, request, lambda a: _SESSION.from_pb(a.session))


def list_sessions(user: str, page_size: int, page_token: str) -> UnaryCall[StoredSessions]:
    request = filled(pb.ListSessionsRequest(), {"user": user, "page_size": page_size, "page_token": page_token})
    return UnaryCall(lambda to: SessionServiceStub(to).ListSessions, request, _page)


def delete_session(session: str, user: str) -> UnaryCall[None]:
    request = pb.DeleteSessionRequest(id=session, user=user)
    return UnaryCall(lambda to: SessionServiceStub(to).DeleteSession, request, lambda a: None)


def list_models() -> UnaryCall[tuple[ModelLimits, ...]]:
    return UnaryCall(lambda to: ModelServiceStub(to).ListModels, pb.ListModelsRequest(), _models)


def get_model(model: str) -> UnaryCall[ModelLimits]:
    request = pb.GetModelRequest(model=model)
    return UnaryCall(lambda to: ModelServiceStub(to).GetModel, request, lambda a: _MODEL.from_pb(a.model))


def tokenize(prompt: Prompt, model: str, chat: bool, options: ChatOptions | None) -> UnaryCall[TokenizedPrompt]:
    request = prompt_to_pb(prompt, model, chat, options)
    return UnaryCall(lambda to: GenerationServiceStub(to).Tokenize, request, _TOKENS.from_pb)


def detokenize(token_ids: Sequence[int], model: str) -> UnaryCall[str]:
    request = filled(pb.DetokenizeRequest(), {"model": model, "token_ids": token_ids})
    return UnaryCall(lambda to: GenerationServiceStub(to).Detokenize, request, lambda a: str(a.text))


def cancel(generation: str, user: str) -> UnaryCall[bool]:
    request = pb.CancelGenerationRequest(id=generation, user=user)
    return UnaryCall(lambda to: GenerationServiceStub(to).CancelGeneration, request, lambda a: bool(a.cancelled))


def _page(answer: pb.ListSessionsResponse) -> StoredSessions:
    return StoredSessions(tuple(map(_SESSION.from_pb, answer.sessions)), answer.next_page_token)


def _models(answer: pb.ListModelsResponse) -> tuple[ModelLimits, ...]:
    return tuple(map(_MODEL.from_pb, answer.models))
