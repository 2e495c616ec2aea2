"""Every error that is raised on purpose. HTTP and gRPC translate an error by its `reason` and by nothing else.

A ConfigError is a wrong setting, a RequestError a mistake of the caller, and a ServiceError is anything else.
"""

from collections.abc import Mapping
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

    def __init_subclass__(cls, reason: str = "") -> None:
        """Give the class this reason; without one it has the reason of its base class."""
        cls.reason = reason or cls.reason

    def __init__(self, message: str) -> None:
        self.message = shortened(message, MESSAGE_BYTES)
        super().__init__(self.message)


class ConfigError(SpecdecError, reason="CONFIG_INVALID"):
    """A setting is wrong."""


class ModelRefused(ConfigError, reason="MODEL_REFUSED"):
    """The model folder is missing or broken, or holds a model that this engine cannot serve."""


class RequestError(SpecdecError, reason="FIELD_INVALID"):
    """A mistake of the caller; `param` is the name of the field as the caller wrote it, empty when there is none."""

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
    """The parameter is unknown or not implemented; such a parameter is always refused and never ignored."""


class ContextLengthExceeded(RequestError, reason="CONTEXT_LENGTH_EXCEEDED"):
    """Prompt, or prompt and output together, are longer than the model's context."""


class ModelNotFound(RequestError, reason="MODEL_NOT_FOUND"):
    """No such model is served."""


class MessageTooLarge(RequestError, reason="MESSAGE_TOO_LARGE"):
    """The body or message is larger than the limit."""


class EncodingUnsupported(RequestError, reason="ENCODING_UNSUPPORTED"):
    """The body is compressed in a way that is not read."""


class RouteNotFound(RequestError, reason="ROUTE_NOT_FOUND"):
    """There is no such path or method."""


class SessionNotFound(RequestError, reason="SESSION_NOT_FOUND"):
    """There is no such session: it never existed, has expired, or belongs to another tenant."""


class GenerationNotFound(RequestError, reason="GENERATION_NOT_FOUND"):
    """There is no such generation: it never existed, has expired, or belongs to another user."""


class SessionExpired(RequestError, reason="EVENTS_EXPIRED"):
    """The session exists, but the requested part of it is not stored any more."""


class UserRequired(RequestError, reason="USER_REQUIRED"):
    """What was asked for exists only for a caller that names a user."""


class KeyRefused(RequestError, reason="CREDENTIALS_INVALID"):
    """The call carries no API key, or one that is not known."""


class PriorityNotAllowed(RequestError, reason="PRIORITY_NOT_ALLOWED"):
    """The API key may not ask for this priority class."""


class HostRefused(RequestError, reason="HOST_REFUSED"):
    """The call was made by a host name that is not this machine's."""


class MediaTypeRefused(RequestError, reason="MEDIA_TYPE_REFUSED"):
    """A page sent a body without saying that it is JSON."""


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
    """The API key has used up one of its limits; there is room again in `seconds`.

    `headers` are what a caller is told of its limits, by the names of HTTP headers.
    """

    def __init__(self, message: str, seconds: float = 1.0, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.seconds = seconds
        self.headers = headers or {}


class SessionStoreDown(ServiceError, reason="SESSION_STORE_DOWN"):
    """Redis does not answer, so nothing can be committed."""


class SessionStoreFull(SessionStoreDown, reason="SESSION_STORE_FULL"):
    """Redis has no memory for new turns, or cannot write to its disk; running turns continue, or wait for the disk."""


class SessionStoreReadOnly(SessionStoreDown, reason="SESSION_STORE_READ_ONLY"):
    """Redis is a replica, which takes no writes."""


class SessionBusy(ServiceError, reason="SESSION_BUSY"):
    """The session is generating already, or another writer came first."""


class TurnConflict(SessionBusy):
    """The session has not as many turns as the caller expects, which no retry of the same request mends."""


class SessionHeld(SessionBusy, reason="SESSION_HELD"):
    """Another owner holds the session for `seconds` more."""

    def __init__(self, message: str, seconds: float = 0.0) -> None:
        super().__init__(message)
        self.seconds = seconds


class TurnOver(SessionBusy, reason="TURN_OVER"):
    """The turn is finished, so it cannot be owned any more."""


class CursorAhead(ServiceError, reason="LOG_ROLLED_BACK"):
    """The caller has seen more than the store holds: the store lost it, and it cannot be repeated."""


class Fenced(ServiceError, reason="FENCED"):
    """A newer owner has the session, so this one must stop."""


class SessionDiverged(ServiceError, reason="SESSION_DIVERGED"):
    """The log is not what was written, or a commit does not continue it, so no part of it may be shown."""


class MessageCorrupted(ServiceError, reason="MESSAGE_CORRUPTED"):
    """A message between services does not fit its checksum, so nothing is made of it."""


class DrafterMismatch(ServiceError, reason="DRAFTER_MISMATCH"):
    """Drafter and target cannot work together."""


class TokenizerMismatch(DrafterMismatch, reason="TOKENIZER_MISMATCH"):
    """Drafter and target have different tokenizers."""


class ProtocolMismatch(DrafterMismatch, reason="PROTOCOL_MISMATCH"):
    """Drafter and verifier have different versions of the protocol."""


class DeadlineExceeded(ServiceError, reason="DEADLINE"):
    """The caller's deadline has passed."""


class InternalError(ServiceError):
    """A bug: the caller gets a request id, and the details are in the log."""


class NoDistribution(InternalError, reason="NO_DISTRIBUTION"):
    """The logits for one sequence are NaN, infinite or all masked, so that no token can be drawn for it."""
