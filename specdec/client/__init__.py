"""A typed client of the gateway's gRPC API, which retries calls and resumes broken streams.

Requests, events and results are plain values; errors are those of `specdec.errors`. The client needs only the packages
of `specdec-serve` itself.
"""

from specdec.client.async_client import AsyncClient
from specdec.client.calls import ModelLimits, StoredSession, StoredSessions, TokenizedPrompt
from specdec.client.client import Client
from specdec.client.events import (
    AnswerMessage,
    ChoiceResult,
    Event,
    FinishedEvent,
    GenerationResult,
    PromptRequest,
    RoundEvent,
    StartedEvent,
    Token,
)
from specdec.client.reading import Retries
from specdec.client.requests import ChatMessage, ChatOptions, CustomTool, FunctionTool, OutputForm, ToolInvocation

__all__ = [
    "AnswerMessage",
    "AsyncClient",
    "ChatMessage",
    "ChatOptions",
    "ChoiceResult",
    "Client",
    "CustomTool",
    "Event",
    "FinishedEvent",
    "FunctionTool",
    "GenerationResult",
    "ModelLimits",
    "OutputForm",
    "PromptRequest",
    "Retries",
    "RoundEvent",
    "StartedEvent",
    "StoredSession",
    "StoredSessions",
    "Token",
    "TokenizedPrompt",
    "ToolInvocation",
]
