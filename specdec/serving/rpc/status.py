"""Table of the gRPC and HTTP status of each error."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import DecodeError
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from specdec import errors
from specdec.errors import InternalError, RequestError, SpecdecError

DOMAIN = "specdec"


@dataclass(frozen=True, slots=True)
class ErrorStatus:
    """Status of one kind of error."""

    grpc: grpc.StatusCode
    http: int
    type: str
    """Error type in OpenAI's API."""
    code: str | None
    """Error code in OpenAI's API."""
    retry_after: float | None = None
    """Seconds after which a retry makes sense; None if a retry would fail again."""


_INVALID = "invalid_request_error"
_ARGUMENT = grpc.StatusCode.INVALID_ARGUMENT
_UNAVAILABLE = grpc.StatusCode.UNAVAILABLE

_TABLE: dict[type[SpecdecError], ErrorStatus] = {
    errors.FieldRequired: ErrorStatus(_ARGUMENT, 400, _INVALID, "invalid_value"),
    errors.FieldInvalid: ErrorStatus(_ARGUMENT, 400, _INVALID, "invalid_value"),
    errors.TokenOutOfRange: ErrorStatus(_ARGUMENT, 400, _INVALID, "invalid_token"),
    errors.GammaTooLarge: ErrorStatus(_ARGUMENT, 400, _INVALID, "invalid_value"),
    errors.UnsupportedParameter: ErrorStatus(grpc.StatusCode.UNIMPLEMENTED, 400, _INVALID, "unsupported_parameter"),
    errors.ContextLengthExceeded: ErrorStatus(_ARGUMENT, 400, _INVALID, "context_length_exceeded"),
    errors.ModelNotFound: ErrorStatus(grpc.StatusCode.NOT_FOUND, 404, _INVALID, "model_not_found"),
    errors.RouteNotFound: ErrorStatus(grpc.StatusCode.UNIMPLEMENTED, 404, _INVALID, "not_found"),
    errors.SessionNotFound: ErrorStatus(grpc.StatusCode.NOT_FOUND, 404, _INVALID, "session_not_found"),
    errors.GenerationNotFound: ErrorStatus(grpc.StatusCode.NOT_FOUND, 404, _INVALID, "generation_not_found"),
    errors.SessionExpired: ErrorStatus(grpc.StatusCode.OUT_OF_RANGE, 410, _INVALID, "events_expired"),
    errors.IdempotencyKeyReused: ErrorStatus(grpc.StatusCode.ALREADY_EXISTS, 422, _INVALID, "idempotency_key_reused"),
    errors.UserRequired: ErrorStatus(grpc.StatusCode.PERMISSION_DENIED, 403, "permission_error", "user_required"),
    errors.KeyRefused: ErrorStatus(grpc.StatusCode.UNAUTHENTICATED, 401, _INVALID, "invalid_api_key"),
    errors.PriorityNotAllowed: ErrorStatus(
        grpc.StatusCode.PERMISSION_DENIED, 403, "permission_error", "priority_not_allowed"
    ),
    errors.HostRefused: ErrorStatus(grpc.StatusCode.PERMISSION_DENIED, 403, "permission_error", "host_refused"),
    errors.MediaTypeRefused: ErrorStatus(_ARGUMENT, 415, _INVALID, "unsupported_media_type"),
    errors.MessageTooLarge: ErrorStatus(grpc.StatusCode.RESOURCE_EXHAUSTED, 413, _INVALID, "message_too_large"),
    errors.EncodingUnsupported: ErrorStatus(_ARGUMENT, 415, _INVALID, "unsupported_encoding"),
    errors.NoVerifier: ErrorStatus(_UNAVAILABLE, 503, "server_error", "no_verifier", 1.0),
    errors.Draining: ErrorStatus(_UNAVAILABLE, 503, "server_error", "draining", 1.0),
    errors.QueueFull: ErrorStatus(grpc.StatusCode.RESOURCE_EXHAUSTED, 429, "rate_limit_error", "queue_full", 2.0),
    errors.RateLimited: ErrorStatus(
        grpc.StatusCode.RESOURCE_EXHAUSTED, 429, "rate_limit_error", "rate_limit_exceeded", 1.0
    ),
    errors.SessionStoreDown: ErrorStatus(_UNAVAILABLE, 503, "server_error", "session_store_down", 1.0),
    errors.SessionStoreFull: ErrorStatus(_UNAVAILABLE, 503, "server_error", "session_store_full", 5.0),
    errors.SessionBusy: ErrorStatus(grpc.StatusCode.ABORTED, 409, "conflict_error", "session_busy"),
    errors.Fenced: ErrorStatus(grpc.StatusCode.FAILED_PRECONDITION, 409, "conflict_error", "fenced"),
    errors.SessionDiverged: ErrorStatus(grpc.StatusCode.ABORTED, 409, "conflict_error", "session_diverged"),
    errors.CursorAhead: ErrorStatus(grpc.StatusCode.ABORTED, 409, "conflict_error", "log_rolled_back"),
    errors.MessageCorrupted: ErrorStatus(grpc.StatusCode.DATA_LOSS, 503, "server_error", "message_corrupted", 1.0),
    errors.DrafterMismatch: ErrorStatus(grpc.StatusCode.FAILED_PRECONDITION, 400, _INVALID, "drafter_mismatch"),
    errors.ProtocolMismatch: ErrorStatus(grpc.StatusCode.FAILED_PRECONDITION, 400, _INVALID, "protocol_mismatch"),
    errors.TokenizerMismatch: ErrorStatus(grpc.StatusCode.FAILED_PRECONDITION, 400, _INVALID, "tokenizer_mismatch"),
    errors.DeadlineExceeded: ErrorStatus(grpc.StatusCode.DEADLINE_EXCEEDED, 504, "server_error", "deadline_exceeded"),
    errors.InternalError: ErrorStatus(grpc.StatusCode.INTERNAL, 500, "server_error", None),
    errors.NoDistribution: ErrorStatus(grpc.StatusCode.INTERNAL, 500, "server_error", "no_distribution"),
}

_BUG = _TABLE[errors.InternalError]


def statuses() -> Iterator[tuple[type[SpecdecError], ErrorStatus]]:
    """Yield every error that can leave a service, with its status: one class for each reason."""
    for kind in _kinds(SpecdecError):
        found = next((_TABLE[base] for base in kind.__mro__ if base in _TABLE), None)
        if found is not None and (kind in _TABLE or kind.reason != getattr(kind.__base__, "reason", "")):
            yield kind, found


def _kinds(base: type[SpecdecError]) -> Iterator[type[SpecdecError]]:
    """Yield the subclasses of an error, each before its own subclasses."""
    for kind in base.__subclasses__():
        yield kind
        yield from _kinds(kind)


def status_of(error: SpecdecError) -> ErrorStatus:
    """Return the status of an error, or that of its nearest base class in the table."""
    found = next((_TABLE[base] for base in type(error).__mro__ if base in _TABLE), _BUG)
    return replace(found, retry_after=error.seconds) if isinstance(error, errors.RateLimited) else found


def logged_error(error: SpecdecError) -> dict[str, str]:
    """Return the log fields of an error, without the message of a RequestError, which may repeat input."""
    return {"reason": error.reason} | ({} if isinstance(error, RequestError) else {"message": error.message})


def rich_status(error: SpecdecError, request_id: str = "") -> status_pb2.Status:
    """Return the error as a gRPC status with ErrorInfo, BadRequest for a wrong field, and RetryInfo for a retry."""
    shown = status_of(error)
    status = status_pb2.Status(code=code_pb2.Code.Value(shown.grpc.name), message=error.message)
    for detail in _details(error, shown, request_id):
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    return status


def _details(error: SpecdecError, shown: ErrorStatus, request_id: str) -> "Iterator[error_details_pb2.ErrorInfo]":
    metadata = {"request_id": request_id} if request_id else {}
    if isinstance(error, RequestError) and error.param:
        metadata["param"] = error.param
    yield error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=metadata)
    if isinstance(error, RequestError) and error.param:
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.param, description=error.message)
        yield error_details_pb2.BadRequest(field_violations=[violation])
    if shown.retry_after is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(round(shown.retry_after * 1000))
        yield retry


def from_rpc_error(error: grpc.RpcError) -> SpecdecError | None:
    """Return the error that another service raised, by its ErrorInfo, or None if the status comes from elsewhere.

    Also return None for an unknown reason and for unreadable details.
    """
    try:
        status = rpc_status.from_call(error)
    except (DecodeError, UnicodeDecodeError, ValueError):  # ValueError: the details contradict the status
        return None
    return _raised_there(status) if status else None


def status_to_bytes(error: SpecdecError, request_id: str = "") -> bytes:
    """Serialize the error as a google.rpc.Status, for a message that reports the end of one generation among many."""
    data: bytes = rich_status(error, request_id).SerializeToString()
    return data


def error_from_bytes(data: bytes) -> SpecdecError:
    """Return the error of a serialized status, or an InternalError if it is foreign or unreadable."""
    try:
        status = status_pb2.Status.FromString(data)
    except (DecodeError, UnicodeDecodeError):
        return InternalError("a generation ended with a status that cannot be read")
    return _raised_there(status) or InternalError(status.message)


def _raised_there(status: status_pb2.Status) -> SpecdecError | None:
    """Return the error that another service encoded in the status, or None if its reason is unknown."""
    try:
        for packed in status.details:
            info = error_details_pb2.ErrorInfo()
            if packed.Unpack(info) and info.domain == DOMAIN:
                return _revive(info, status.message)
    except (DecodeError, UnicodeDecodeError):
        pass
    return None


def _revive(info: error_details_pb2.ErrorInfo, message: str) -> SpecdecError | None:
    kind = next((kind for kind, _ in statuses() if kind.reason == info.reason), None)
    if kind is None:
        return None
    if issubclass(kind, RequestError):
        return kind(message, info.metadata.get("param", ""))
    return kind(message)
