"""A typed client of the gateway's gRPC API, which tries again and goes on where a stream broke.

It sends requests as values, and gives events and results as values; errors are those of `specdec.errors`. It needs no
package beside those of `specdec-serve` itself.
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
