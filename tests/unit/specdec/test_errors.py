"""Errors carry a stable reason, and the caller's mistakes a field."""

from collections.abc import Iterator

import pytest

from specdec.errors import ConfigError, FieldInvalid, RequestError, ServiceError, SpecdecError


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
