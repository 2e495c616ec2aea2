"""Environment in which tests run other people's clients."""

import os
from pathlib import Path

import pytest

from tests.e2e.system import ROOT, environment

SECONDS = 280
"""Most seconds that a client may take."""


def interpreter(name: str) -> str:
    """Return the interpreter of the environment `build/NAME`, or the one that a variable names; skips without any."""
    variable = f"SPECDEC_TEST_{name.upper().replace('-', '_')}"
    found = Path(os.environ.get(variable, ROOT / "build" / name / "bin" / "python"))
    if not found.exists():
        pytest.skip(f"the clients are not here: `make tool-clients`, or {variable}")
    return str(found)


def client_environment() -> dict[str, str]:
    """Return the variables of this process, without those of this project's code."""
    kept = {name: value for name, value in environment().items() if name != "PYTHONPATH"}
    return kept | {"NO_PROXY": "127.0.0.1"}
