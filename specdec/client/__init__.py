"""A typed client of the gateway's gRPC API, which retries calls and resumes broken streams.

Requests, events and results are plain values; errors are those of `specdec.errors`. The client needs only the packages
of `specdec-serve` itself.
"""

from specdec.client.client import Client, Retries
from specdec.client.events import (
    Event,
    FinishedEvent,
    GenerationResult,
    PromptRequest,
    RoundEvent,
    StartedEvent,
    Token,
)

__all__ = [
    "Client",
    "Event",
    "FinishedEvent",
    "GenerationResult",
    "PromptRequest",
    "Retries",
    "RoundEvent",
    "StartedEvent",
    "Token",
]
