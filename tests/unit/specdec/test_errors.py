"""Errors have a stable reason, and errors of the caller name a field."""

from collections.abc import Iterator

import pytest

from specdec.errors import (
    MESSAGE_BYTES,
    PARAM_BYTES,
    ConfigError,
    FieldInvalid,
    RequestError,
    ServiceError,
    SpecdecError,
)


def family(error: type[SpecdecError]) -> Iterator[type[SpecdecError]]:
    yield error
    for child in error.__subclasses__():
        yield from family(child)


LEAVES = [
    error
    for error in family(SpecdecError)
    if error.__module__ == SpecdecError.__module__ and not error.__subclasses__()
]


def test_no_two_errors_share_a_reason() -> None:
    reasons = [error.reason for error in LEAVES]
    assert len(set(reasons)) == len(reasons)


@pytest.mark.parametrize("error", LEAVES, ids=lambda error: error.__name__)
def test_an_error_keeps_its_message_and_has_one_kind(error: type[SpecdecError]) -> None:
    raised = error("what happened")
    assert str(raised) == raised.message == "what happened"
    assert raised.reason.isupper()
    assert sum(issubclass(error, kind) for kind in (ConfigError, RequestError, ServiceError)) == 1


def test_a_callers_mistake_names_the_field() -> None:
    assert FieldInvalid("too hot", "temperature").param == "temperature"
    assert FieldInvalid("too hot").param == ""


@pytest.mark.parametrize("char", ["x", "é", "\U0001f600"])
def test_what_a_caller_sent_is_cut_in_messages_and_names(char: str) -> None:
    error = FieldInvalid(f"unknown parameter {char * 1_000_000}", char * 1_000_000)
    assert len(error.message.encode()) <= MESSAGE_BYTES
    assert len(error.param.encode()) <= PARAM_BYTES
    assert error.message.startswith(f"unknown parameter {char}")
    assert error.message.endswith(f"{char}…")
