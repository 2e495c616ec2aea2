"""The table of errors is complete, and errors are unchanged after transmission."""

import inspect

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from specdec import errors
from specdec.errors import ConfigError, FieldInvalid, InternalError, NoVerifier, RequestError, SpecdecError
from specdec.serving.rpc.status import error_from_bytes, rich_status, status_of, status_to_bytes

RAISED = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, SpecdecError) and not issubclass(kind, ConfigError) and not kind.__subclasses__()
]


@pytest.mark.parametrize("kind", RAISED)
def test_every_error_a_request_can_meet_has_a_row_of_its_own(kind: type[SpecdecError]) -> None:
    assert status_of(kind("message")) != status_of(errors.InternalError("message"))


def test_reasons_are_distinct_so_that_a_peer_can_tell_them_apart() -> None:
    reasons = [kind.reason for kind in RAISED]
    assert len(set(reasons)) == len(reasons)


def test_a_callers_mistake_names_its_field() -> None:
    status = rich_status(FieldInvalid("temperature must be in [0, 2]", "temperature"), "request-1")
    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    assert status.details[0].Unpack(info)
    assert status.details[1].Unpack(bad)
    assert (info.reason, info.domain, info.metadata["request_id"]) == ("FIELD_INVALID", "specdec", "request-1")
    assert bad.field_violations[0].field == "temperature"


def test_a_wait_says_how_long() -> None:
    status = rich_status(NoVerifier("no verifier is ready"))
    retry = error_details_pb2.RetryInfo()
    assert status.details[-1].Unpack(retry)
    assert retry.retry_delay.ToMilliseconds() == 1000


def test_an_error_without_a_row_of_its_own_takes_that_of_its_base() -> None:
    class Special(FieldInvalid):
        pass

    assert status_of(Special("message")) == status_of(FieldInvalid("message"))


def test_an_unknown_error_is_internal() -> None:
    assert status_of(RequestError("message")).grpc is grpc.StatusCode.INTERNAL


ENDS = [errors.DeadlineExceeded, errors.Draining, errors.Fenced, errors.QueueFull, errors.GammaTooLarge, InternalError]


@pytest.mark.parametrize("kind", ENDS)
def test_an_error_travels_in_a_message(kind: type[SpecdecError]) -> None:
    found = error_from_bytes(status_to_bytes(kind("message"), "request-1"))
    assert (type(found), found.message) == (kind, "message")


def test_the_field_of_an_error_travels_in_a_message() -> None:
    found = error_from_bytes(status_to_bytes(FieldInvalid("temperature is wrong", "temperature")))
    assert isinstance(found, FieldInvalid)
    assert found.param == "temperature"


@pytest.mark.parametrize("data", [b"", b"\xff\xff", status_pb2.Status(code=3, message="foreign").SerializeToString()])
def test_a_status_of_nobody_here_is_an_internal_error(data: bytes) -> None:
    assert type(error_from_bytes(data)) is InternalError


def test_details_that_cannot_be_read_are_an_internal_error() -> None:
    status = rich_status(NoVerifier("message"))
    status.details[0].value = b"\xff\xff"
    assert type(error_from_bytes(status.SerializeToString())) is InternalError
