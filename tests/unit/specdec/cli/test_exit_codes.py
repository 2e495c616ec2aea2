"""Every kind of failure has its exit status, and shows a traceback only on request."""

import pytest

from specdec.cli import app
from specdec.cli.app import status_of
from specdec.cli.exit_codes import EPILOG, ExitCode, StartFailed, Unreachable, exit_code
from specdec.errors import ConfigError, FieldInvalid, NoVerifier, SpecdecError


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Unreachable("x"), ExitCode.UNREACHABLE),
        (ConfigError("x"), ExitCode.USAGE),
        (FieldInvalid("x", "y"), ExitCode.USAGE),
        (StartFailed("x"), ExitCode.FAILED),
        (NoVerifier("x"), ExitCode.FAILED),
    ],
)
def test_failures_have_codes(error: SpecdecError, code: ExitCode) -> None:
    assert exit_code(error) is code


def test_every_code_is_documented() -> None:
    assert all(f" {code.value} " in EPILOG for code in ExitCode)


@pytest.mark.parametrize(
    "arguments",
    [
        ["bogus"],
        ["run"],
        ["run", "x", "--bogus"],
        ["up", "--http", "x"],
        ["run", "x", "--no-speculation", "--mode=block"],
    ],
)
def test_wrong_usage_is_one_line_and_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(arguments) == ExitCode.USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("debug", [True, False])
def test_a_bug_shows_its_traceback_only_on_request(
    debug: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(app.running, "run", lambda *_: 1 / 0)
    assert status_of(["run", "x"], debug) == ExitCode.FAILED
    captured = capsys.readouterr().err
    assert ("Traceback" in captured) is debug
    assert "ZeroDivisionError" in captured
