"""All errors that are raised on purpose. HTTP and gRPC translate an error only by its `reason`.

A ConfigError is a wrong setting, a RequestError is a mistake of the caller, and a ServiceError is anything else.
"""

from collections.abc import Mapping
from typing import ClassVar

MESSAGE_BYTES = 1024
"""Maximum length of an error message, in bytes of UTF-8. It may repeat a caller's input in logs and trailers."""
PARAM_BYTES = 256
"""Maximum length of a field name in an error, in bytes of UTF-8."""


def shortened(text: str, limit: int) -> str:
    """Return the text, cut to at most `limit` bytes of UTF-8."""
    start = text[: limit + 1].encode(errors="replace")
    return (
        text if len(start) <= limit else start[: limit - 3].decode(errors="ignore") + "…"
    )  # the ellipsis takes 3 bytes


class SpecdecError(Exception):
    """Base class of all errors. `reason` is the stable, machine-readable name of the error."""

    reason: ClassVar[str] = "INTERNAL"

    def __init_subclass__(cls, reason: str = "") -> None:
        """Set the reason of the class. Without one, it inherits the reason of its base class."""
        cls.reason = reason or cls.reason

    def __init__(self, message: str) -> None:
        self.message = shortened(message, MESSAGE_BYTES)
        super().__init__(self.message)


class ConfigError(SpecdecError, reason="CONFIG_INVALID"):
    """A setting is wrong."""


class ModelRefused(ConfigError, reason="MODEL_REFUSED"):
    """The model folder is missing or broken, or holds a model that this engine cannot serve."""


class RequestError(SpecdecError, reason="FIELD_INVALID"):
    """A mistake of the caller. `param` is the field's name as the caller wrote it, or empty."""

    def __init__(self, message: str, param: str = "") -> None:
        super().__init__(message)
        self.param = shortened(param, PARAM_BYTES)


class FieldRequired(RequestError, reason="FIELD_REQUIRED"):
    """A required field is missing or empty."""


class FieldInvalid(RequestError):
    """A field has a value that is out of range or malformed."""


class TokenOutOfRange(RequestError, reason="TOKEN_OUT_OF_RANGE"):
    """A token id is not in the vocabulary."""


class GammaTooLarge(RequestError, reason="GAMMA_TOO_LARGE"):
    """The draft length is above the server's limit."""


class UnsupportedParameter(RequestError, reason="UNSUPPORTED_PARAMETER"):
    """The parameter is unknown or not implemented. Such a parameter is refused, never ignored."""


class ContextLengthExceeded(RequestError, reason="CONTEXT_LENGTH_EXCEEDED"):
    """The prompt, or prompt and output together, exceed the model's context length."""


class ModelNotFound(RequestError, reason="MODEL_NOT_FOUND"):
    """The requested model is not served."""


class MessageTooLarge(RequestError, reason="MESSAGE_TOO_LARGE"):
    """The body or message exceeds the size limit."""


class EncodingUnsupported(RequestError, reason="ENCODING_UNSUPPORTED"):
    """The body uses an unsupported compression."""


class RouteNotFound(RequestError, reason="ROUTE_NOT_FOUND"):
    """The path or method does not exist."""


class SessionNotFound(RequestError, reason="SESSION_NOT_FOUND"):
    """The session never existed, has expired, or belongs to another tenant."""


class GenerationNotFound(RequestError, reason="GENERATION_NOT_FOUND"):
    """The generation never existed, has expired, or belongs to another user."""


class SessionExpired(RequestError, reason="EVENTS_EXPIRED"):
    """The session exists, but the requested part of it is no longer stored."""


class UserRequired(RequestError, reason="USER_REQUIRED"):
    """The requested resource exists only for callers that name a user."""


class KeyRefused(RequestError, reason="CREDENTIALS_INVALID"):
    """The call has no API key or an unknown one."""


class PriorityNotAllowed(RequestError, reason="PRIORITY_NOT_ALLOWED"):
    """The API key does not allow this priority class."""


class HostRefused(RequestError, reason="HOST_REFUSED"):
    """The call used a host name that is not this machine's."""


class MediaTypeRefused(RequestError, reason="MEDIA_TYPE_REFUSED"):
    """A web page sent a body that it did not declare as JSON."""


class IdempotencyKeyReused(RequestError, reason="IDEMPOTENCY_KEY_REUSED"):
    """The idempotency key was used before with a different request."""


class ServiceError(SpecdecError):
    """An error that is not a mistake of the caller."""


class NoVerifier(ServiceError, reason="NO_VERIFIER"):
    """No verifier is ready."""


class Draining(ServiceError, reason="DRAINING"):
    """The process is shutting down and takes no new work."""


class QueueFull(ServiceError, reason="QUEUE_FULL"):
    """Too much work is waiting."""


class RateLimited(ServiceError, reason="RATE_LIMITED"):
    """The API key has exceeded one of its limits. Capacity is available again after `seconds`.

    `headers` describe the caller's limits, keyed by HTTP header name.
    """

    def __init__(self, message: str, seconds: float = 1.0, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.seconds = seconds
        self.headers = headers or {}


class SessionStoreDown(ServiceError, reason="SESSION_STORE_DOWN"):
    """Redis does not answer, so nothing can be committed."""


class SessionStoreFull(SessionStoreDown, reason="SESSION_STORE_FULL"):
    """Redis has no memory for new turns, or cannot write to its disk. Running turns continue, or wait for the disk."""


class SessionStoreReadOnly(SessionStoreDown, reason="SESSION_STORE_READ_ONLY"):
    """Redis is a read-only replica."""


class SessionBusy(ServiceError, reason="SESSION_BUSY"):
    """The session is already generating, or another writer came first."""


class TurnConflict(SessionBusy):
    """The session does not have the expected number of turns. Retrying the same request cannot succeed."""


class SessionHeld(SessionBusy, reason="SESSION_HELD"):
    """Another owner holds the session for `seconds` more."""

    def __init__(self, message: str, seconds: float = 0.0) -> None:
        super().__init__(message)
        self.seconds = seconds


class TurnOver(SessionBusy, reason="TURN_OVER"):
    """The turn is finished and can no longer be owned."""


class CursorAhead(ServiceError, reason="LOG_ROLLED_BACK"):
    """The caller has seen more than the store holds. The store lost that part, and it cannot be repeated."""


class Fenced(ServiceError, reason="FENCED"):
    """The session has a newer owner, so this one must stop."""


class SessionDiverged(ServiceError, reason="SESSION_DIVERGED"):
    """The log differs from what was written, or a commit does not continue it. No part of it may be shown."""


class MessageCorrupted(ServiceError, reason="MESSAGE_CORRUPTED"):
    """A message between services does not match its checksum and is discarded."""


class DrafterMismatch(ServiceError, reason="DRAFTER_MISMATCH"):
    """Drafter and target cannot work together."""


class TokenizerMismatch(DrafterMismatch, reason="TOKENIZER_MISMATCH"):
    """Drafter and target have different tokenizers."""


class ProtocolMismatch(DrafterMismatch, reason="PROTOCOL_MISMATCH"):
    """Drafter and verifier have different versions of the protocol."""


class DeadlineExceeded(ServiceError, reason="DEADLINE"):
    """The caller's deadline has passed."""


class InternalError(ServiceError):
    """A bug. The caller gets a request id; the details are in the log."""


class NoDistribution(InternalError, reason="NO_DISTRIBUTION"):
    """The logits of one sequence are NaN, infinite or all masked, so no token can be drawn."""


class AllMasked(NoDistribution):
    """The grammar and the token ids of a request leave no token to draw."""
