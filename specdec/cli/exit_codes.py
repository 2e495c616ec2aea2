"""The exit statuses of `specdec`, and the status for each error."""

from enum import IntEnum

from specdec.errors import ConfigError, KeyRefused, RequestError, SpecdecError
from specdec.serving.telemetry.scrapes import MetricsUnreadable


class ExitCode(IntEnum):
    """The exit status of every command."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    UNAUTHENTICATED = 4


class Unreachable(SpecdecError, reason="UNREACHABLE"):
    """Nothing answers at an address."""


class StartFailed(SpecdecError, reason="START_FAILED"):
    """A process did not become healthy."""


EPILOG = "Exit status: 0 ok, 1 failed, 2 wrong usage or configuration, 3 nothing answers at the address, 4 no API key."


def exit_code(error: SpecdecError) -> ExitCode:
    match error:
        case Unreachable() | MetricsUnreadable():
            return ExitCode.UNREACHABLE
        case KeyRefused():
            return ExitCode.UNAUTHENTICATED
        case ConfigError() | RequestError():
            return ExitCode.USAGE
        case _:
            return ExitCode.FAILED
