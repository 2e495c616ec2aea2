"""Every error this system raises on purpose; transports translate them by `reason` and nothing else.

SpecdecError
├── ConfigError            a setting is wrong: the process does not start
│   └── ModelRefused       the model folder cannot be served
├── RequestError           the caller's mistake, named by field
│   ├── FieldRequired      ├── FieldInvalid       ├── TokenOutOfRange   ├── GammaTooLarge
│   ├── UnsupportedParameter   ├── ContextLengthExceeded   ├── ModelNotFound   ├── MessageTooLarge
│   ├── RouteNotFound      ├── SessionNotFound   ├── SessionExpired    ├── GenerationNotFound
│   └── IdempotencyKeyReused
└── ServiceError           not the caller's mistake
    ├── NoVerifier         ├── Draining           ├── QueueFull         ├── SessionStoreDown
    │                                                                   └── SessionStoreFull
    ├── SessionBusy        ├── Fenced             ├── SessionDiverged   ├── DrafterMismatch
    │   ├── SessionHeld    ├── DeadlineExceeded   ├── CursorAhead       │   ├── TokenizerMismatch
    │   └── TurnOver                                                    │   └── ProtocolMismatch
    └── InternalError
        └── NoDistribution
"""

from typing import ClassVar


class SpecdecError(Exception):
    """Base of all; `reason` is the stable, machine-readable name of the error."""

    reason: ClassVar[str] = "INTERNAL"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ConfigError(SpecdecError):
    """A setting is wrong."""

    reason = "CONFIG_INVALID"


class ModelRefused(ConfigError):
    """The model folder is missing, broken or not a decoder this engine can serve."""

    reason = "MODEL_REFUSED"


class RequestError(SpecdecError):
    """The caller's mistake; `param` names the field as the caller wrote it, empty when there is none."""

    reason = "FIELD_INVALID"

    def __init__(self, message: str, param: str = "") -> None:
        super().__init__(message)
        self.param = param


class FieldRequired(RequestError):
    """A field that must be there is not, or is empty."""

    reason = "FIELD_REQUIRED"


class FieldInvalid(RequestError):
    """A field has a value outside its range or of the wrong form."""

    reason = "FIELD_INVALID"


class TokenOutOfRange(RequestError):
    """A token id is not in the vocabulary."""

    reason = "TOKEN_OUT_OF_RANGE"


class GammaTooLarge(RequestError):
    """The draft length is over the server's limit."""

    reason = "GAMMA_TOO_LARGE"


class UnsupportedParameter(RequestError):
    """The parameter is unknown or not built; it is never ignored in silence."""

    reason = "UNSUPPORTED_PARAMETER"


class ContextLengthExceeded(RequestError):
    """Prompt, or prompt and output together, are longer than the model's context."""

    reason = "CONTEXT_LENGTH_EXCEEDED"


class ModelNotFound(RequestError):
    """No such model is served."""

    reason = "MODEL_NOT_FOUND"


class MessageTooLarge(RequestError):
    """The body or message is over the size limit."""

    reason = "MESSAGE_TOO_LARGE"


class RouteNotFound(RequestError):
    """No such path or method."""

    reason = "ROUTE_NOT_FOUND"


class SessionNotFound(RequestError):
    """No such session: it never was, it expired, or it is another tenant's."""

    reason = "SESSION_NOT_FOUND"


class GenerationNotFound(RequestError):
    """No such generation: it never was, it expired, or it is another user's."""

    reason = "GENERATION_NOT_FOUND"


class SessionExpired(RequestError):
    """It was there, and what is asked of it is not kept any more."""

    reason = "EVENTS_EXPIRED"


class IdempotencyKeyReused(RequestError):
    """The key came before, with a request that asked for something else."""

    reason = "IDEMPOTENCY_KEY_REUSED"


class ServiceError(SpecdecError):
    """Not the caller's mistake."""


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
    """Redis has no room for new turns; those that run go on."""

    reason = "SESSION_STORE_FULL"


class SessionBusy(ServiceError):
    """The session is generating already, or another writer was first."""

    reason = "SESSION_BUSY"


class SessionHeld(SessionBusy):
    """Another owner has the session for `seconds` more."""

    reason = "SESSION_HELD"

    def __init__(self, message: str, seconds: float = 0.0) -> None:
        super().__init__(message)
        self.seconds = seconds


class TurnOver(SessionBusy):
    """The turn is done: there is nothing left to own."""

    reason = "TURN_OVER"


class CursorAhead(ServiceError):
    """The caller has seen more than the store holds: the store lost it, and nothing is invented in its place."""

    reason = "LOG_ROLLED_BACK"


class Fenced(ServiceError):
    """A newer owner has the session: this one must stop."""

    reason = "FENCED"


class SessionDiverged(ServiceError):
    """What is to be committed does not continue the log the store holds, so nothing of it may be shown."""

    reason = "SESSION_DIVERGED"


class DrafterMismatch(ServiceError):
    """Drafter and target do not fit together."""

    reason = "DRAFTER_MISMATCH"


class TokenizerMismatch(DrafterMismatch):
    """They do not share a tokenizer."""

    reason = "TOKENIZER_MISMATCH"


class ProtocolMismatch(DrafterMismatch):
    """Their services speak different versions of the protocol."""

    reason = "PROTOCOL_MISMATCH"


class DeadlineExceeded(ServiceError):
    """The caller's deadline passed."""

    reason = "DEADLINE"


class InternalError(ServiceError):
    """A bug: the caller sees a request id, the log has the rest."""

    reason = "INTERNAL"


class NoDistribution(InternalError):
    """The model's logits for one sequence are NaN, infinite, or masked throughout: no token can be drawn for it."""

    reason = "NO_DISTRIBUTION"
