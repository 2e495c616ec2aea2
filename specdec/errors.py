"""Every error that is raised on purpose. HTTP and gRPC translate an error by its `reason` and by nothing else.

SpecdecError
├── ConfigError            a setting is wrong, so the process does not start (ModelRefused: the model folder)
├── RequestError           a mistake of the caller, with the name of the field
│   ├── FieldRequired, FieldInvalid, TokenOutOfRange, GammaTooLarge, UnsupportedParameter, ContextLengthExceeded
│   ├── ModelNotFound, MessageTooLarge, RouteNotFound, SessionNotFound, SessionExpired, GenerationNotFound
│   └── IdempotencyKeyReused, UserRequired
└── ServiceError           not a mistake of the caller
    ├── NoVerifier         ├── Draining           ├── QueueFull            ├── SessionStoreDown
    ├── Fenced             ├── DeadlineExceeded   ├── CursorAhead          │   └── SessionStoreFull
    ├── SessionBusy        ├── SessionDiverged    ├── InternalError        └── DrafterMismatch
    │   ├── SessionHeld                           │   └── NoDistribution       ├── TokenizerMismatch
    │   └── TurnOver                                                           └── ProtocolMismatch
"""

from typing import ClassVar

MESSAGE_BYTES = 1024
"""Longest message of an error, in UTF-8; it may repeat what a caller sent, and goes to logs and gRPC trailers."""
PARAM_BYTES = 256
"""Longest name of a field in an error, in UTF-8."""


def shortened(text: str, limit: int) -> str:
    """The text, cut to at most `limit` bytes of UTF-8."""
    start = text[: limit + 1].encode(errors="replace")
    return text if len(start) <= limit else start[: limit - 3].decode(errors="ignore") + "…"  # which takes 3 bytes


class SpecdecError(Exception):
    """Base of all errors; `reason` is the stable, machine-readable name of the error."""

    reason: ClassVar[str] = "INTERNAL"

    def __init__(self, message: str) -> None:
        self.message = shortened(message, MESSAGE_BYTES)
        super().__init__(self.message)


class ConfigError(SpecdecError):
    """A setting is wrong."""

    reason = "CONFIG_INVALID"


class ModelRefused(ConfigError):
    """The model folder is missing or broken, or holds a model that this engine cannot serve."""

    reason = "MODEL_REFUSED"


class RequestError(SpecdecError):
    """A mistake of the caller; `param` is the name of the field as the caller wrote it, empty when there is none."""

    reason = "FIELD_INVALID"

    def __init__(self, message: str, param: str = "") -> None:
        super().__init__(message)
        self.param = shortened(param, PARAM_BYTES)


class FieldRequired(RequestError):
    """A required field is missing or empty."""

    reason = "FIELD_REQUIRED"


class FieldInvalid(RequestError):
    """A field has a value that is out of range or malformed."""


class TokenOutOfRange(RequestError):
    """A token id is not in the vocabulary."""

    reason = "TOKEN_OUT_OF_RANGE"


class GammaTooLarge(RequestError):
    """The draft length is above the server's limit."""

    reason = "GAMMA_TOO_LARGE"


class UnsupportedParameter(RequestError):
    """The parameter is unknown or not implemented; such a parameter is always refused and never ignored."""

    reason = "UNSUPPORTED_PARAMETER"


class ContextLengthExceeded(RequestError):
    """Prompt, or prompt and output together, are longer than the model's context."""

    reason = "CONTEXT_LENGTH_EXCEEDED"


class ModelNotFound(RequestError):
    """No such model is served."""

    reason = "MODEL_NOT_FOUND"


class MessageTooLarge(RequestError):
    """The body or message is larger than the limit."""

    reason = "MESSAGE_TOO_LARGE"


class RouteNotFound(RequestError):
    """There is no such path or method."""

    reason = "ROUTE_NOT_FOUND"


class SessionNotFound(RequestError):
    """There is no such session: it never existed, has expired, or belongs to another tenant."""

    reason = "SESSION_NOT_FOUND"


class GenerationNotFound(RequestError):
    """There is no such generation: it never existed, has expired, or belongs to another user."""

    reason = "GENERATION_NOT_FOUND"


class SessionExpired(RequestError):
    """The session exists, but the requested part of it is not stored any more."""

    reason = "EVENTS_EXPIRED"


class UserRequired(RequestError):
    """What was asked for exists only for a caller that names a user."""

    reason = "USER_REQUIRED"


class IdempotencyKeyReused(RequestError):
    """The idempotency key was used before with a different request."""

    reason = "IDEMPOTENCY_KEY_REUSED"


class ServiceError(SpecdecError):
    """An error that is not a mistake of the caller."""


class NoVerifier(ServiceError):
    """No verifier is ready."""

    reason = "NO_VERIFIER"


class Draining(ServiceError):
    """The process is shutting down and takes no new work."""

    reason = "DRAINING"


class QueueFull(ServiceError):
    """Too much work is waiting."""

    reason = "QUEUE_FULL"


class SessionStoreDown(ServiceError):
    """Redis does not answer, so nothing can be committed."""

    reason = "SESSION_STORE_DOWN"


class SessionStoreFull(SessionStoreDown):
    """Redis has no memory for new turns; running turns continue."""

    reason = "SESSION_STORE_FULL"


class SessionBusy(ServiceError):
    """The session is generating already, or another writer came first."""

    reason = "SESSION_BUSY"


class SessionHeld(SessionBusy):
    """Another owner holds the session for `seconds` more."""

    reason = "SESSION_HELD"

    def __init__(self, message: str, seconds: float = 0.0) -> None:
        super().__init__(message)
        self.seconds = seconds


class TurnOver(SessionBusy):
    """The turn is finished, so it cannot be owned any more."""

    reason = "TURN_OVER"


class CursorAhead(ServiceError):
    """The caller has seen more than the store holds: the store lost it, and it cannot be repeated."""

    reason = "LOG_ROLLED_BACK"


class Fenced(ServiceError):
    """A newer owner has the session, so this one must stop."""

    reason = "FENCED"


class SessionDiverged(ServiceError):
    """A commit does not continue the log that the store holds, so no part of it may be shown."""

    reason = "SESSION_DIVERGED"


class DrafterMismatch(ServiceError):
    """Drafter and target cannot work together."""

    reason = "DRAFTER_MISMATCH"


class TokenizerMismatch(DrafterMismatch):
    """Drafter and target have different tokenizers."""

    reason = "TOKENIZER_MISMATCH"


class ProtocolMismatch(DrafterMismatch):
    """Drafter and verifier have different versions of the protocol."""

    reason = "PROTOCOL_MISMATCH"


class DeadlineExceeded(ServiceError):
    """The caller's deadline has passed."""

    reason = "DEADLINE"


class InternalError(ServiceError):
    """A bug: the caller gets a request id, and the details are in the log."""


class NoDistribution(InternalError):
    """The logits for one sequence are NaN, infinite or all masked, so that no token can be drawn for it."""

    reason = "NO_DISTRIBUTION"
