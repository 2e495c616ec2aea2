"""Checks of a service's own configuration; `specdec doctor` shows the checks of all services."""

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum

from specdec.serving.addresses import listen


class Status(StrEnum):
    """Result of a check."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One check and its result."""

    name: str
    status: Status
    detail: str
    """Description of the result."""
    remedy: str = ""
    """Suggested fix; empty if the check passed."""
    source: str = ""
    """Origin of the check, set by the doctor: the name of a service's configuration file, or `specdec`."""

    @classmethod
    def ok(cls, name: str, detail: str, source: str = "") -> "Check":
        return cls(name, Status.OK, detail, "", source)

    @classmethod
    def warn(cls, name: str, detail: str, remedy: str) -> "Check":
        """Return a check with a problem that does not prevent the service from running."""
        return cls(name, Status.WARN, detail, remedy)

    @classmethod
    def fail(cls, name: str, detail: str, remedy: str, source: str = "") -> "Check":
        """Return a check with a problem that prevents the service from running."""
        return cls(name, Status.FAIL, detail, remedy, source)


def write_checks(checks: Iterable[Check], write: Callable[[str], object]) -> bool:
    """Write each check as one line of JSON, without its source. Return False if one has failed."""
    passed = True
    for check in checks:
        values = asdict(check)
        del values["source"]
        write(json.dumps(values) + "\n")
        passed = passed and check.status is not Status.FAIL
    return passed


def port_check(name: str, address: str) -> Check:
    """Check whether this machine can listen on the address of the setting `name`."""
    try:
        listener, _ = listen(address)
        listener.close()
    except OSError as error:
        detail = f"cannot listen on {address}: {error.strerror}"
        return Check.warn(name, detail, f"end what listens there, unless it is this service, or set {name}")
    return Check.ok(name, f"{address} is free")
