"""The command line and the services run with only the packages of their own extra.

These tests cover the command line, the ratio controller, and the contents of each extra. `test_images.py` does the same
for the three services with the files of their images. In `tests/e2e/test_chart_runs.py` they also answer requests.
"""

import os
import re
import subprocess
import tomllib
from collections.abc import Iterator

import pytest
from packaging.utils import canonicalize_name

from specdec.cli.exit_codes import ExitCode
from tests.architecture.extras import (
    IMPORT_EVERYTHING,
    PACKAGE_OF,
    ROOT,
    RUN,
    RUN_COMMAND,
    command_with,
    declared,
    foreign_modules,
    installed_with,
)


def run(extra: str, code: str, *arguments: str, package: str = "") -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": str(ROOT), "HOME": os.environ["HOME"], "OMP_NUM_THREADS": "1"}
    command = command_with(extra, code, *arguments, package=package)
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180, env=environment)


def pins() -> Iterator[str]:
    """Return the names in constraints.txt, normalized."""
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").split():
        yield canonicalize_name(line.partition("==")[0])


def test_every_module_of_the_command_line_imports_with_its_own_extra() -> None:
    done = run("cli", IMPORT_EVERYTHING)
    assert done.returncode == 0, done.stderr


def test_the_ratio_controller_answers_with_the_gateway_s_extra() -> None:
    done = run("gateway", RUN, "--help", package="gateway.ratio_controller")
    assert done.returncode == 0, done.stderr
    assert "--config" in done.stdout


def test_the_command_line_dials_a_gateway_with_its_own_extra() -> None:
    done = run("cli", RUN_COMMAND, "run", "def f(", "--address", "127.0.0.1:9")
    assert done.returncode == ExitCode.UNREACHABLE, done.stdout + done.stderr
    assert "127.0.0.1:9" in done.stderr


def test_what_is_blocked_is_what_the_extra_lacks() -> None:
    assert {"torch", "pytest"} <= foreign_modules("gateway")
    assert {"redis", "kubernetes", "fastapi", "uvicorn", "pytest"} <= foreign_modules("verifier")
    assert not {"torch", "transformers", "grpc"} & foreign_modules("drafter")
    assert {"torch", "transformers", "numpy", "fastapi"} <= foreign_modules("cli")


def test_the_gateway_installs_no_torch() -> None:
    assert "torch" not in installed_with("gateway")
    assert "torch" in installed_with("verifier")


@pytest.mark.parametrize("extra", PACKAGE_OF)
def test_every_package_of_an_extra_is_pinned(extra: str) -> None:
    assert installed_with(extra) - {"setuptools"} <= set(pins())
    assert {canonicalize_name(each.name) for each in declared(extra)} <= installed_with(extra)


def test_all_holds_every_extra_of_the_product() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (everything,) = project["optional-dependencies"]["all"]
    assert set(re.split(r"[\[\],]", everything)) >= {project["name"], "embedded", *PACKAGE_OF}
