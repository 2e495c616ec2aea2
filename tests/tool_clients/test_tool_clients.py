"""instructor and LangChain, unmodified, get objects and calls of tools of a running system."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.system import ROOT, System, environment, running_system

SECONDS = 280


@pytest.fixture(scope="module")
def python() -> str:
    """The interpreter that has the clients; skips where there is none."""
    found = Path(os.environ.get("SPECDEC_TEST_TOOL_CLIENTS", ROOT / "build" / "tool-clients" / "bin" / "python"))
    if not found.exists():
        pytest.skip("instructor and LangChain are not here: `make tool-clients`, or SPECDEC_TEST_TOOL_CLIENTS")
    return str(found)


@pytest.fixture(scope="module")
def served(python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with running_system(tmp_path_factory.mktemp("system"), "--no-kv") as system:
        yield system


@pytest.fixture(scope="module")
def gave(python: str, served: System) -> dict[str, Any]:
    """Return the answers of the client, by the way of asking."""
    asked = [python, str(Path(__file__).with_name("ask.py")), f"{served.http}/v1"]
    kept = {name: value for name, value in environment().items() if name != "PYTHONPATH"}
    done = subprocess.run(asked, env=kept | {"NO_PROXY": "127.0.0.1"}, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_every_way_to_ask_for_an_object_gives_one(gave: dict[str, Any]) -> None:
    people = {name: value for name, value in gave.items() if not name.startswith("bind_tools")}
    assert len(people) == 6
    for name, person in people.items():
        assert isinstance(person, dict), (name, person)
        assert len(person["name"]) <= 8
        assert 0 <= person["age"] <= 99


def test_bound_tools_are_called_whole_and_in_pieces(gave: dict[str, Any]) -> None:
    for way in ("bind_tools", "bind_tools stream"):
        ((name, arguments),) = gave[way]
        assert name == "add_numbers"
        assert {"a", "b"} <= arguments.keys()
    assert gave["bind_tools pieces"] > 1
    assert gave["bind_tools after"] == "AIMessage"
