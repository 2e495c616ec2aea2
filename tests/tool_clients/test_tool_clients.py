"""instructor and LangChain, unmodified, get objects and calls of tools of a running system."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.system import System
from tests.tool_clients.environment import SECONDS, client_environment, interpreter


@pytest.fixture(scope="module")
def python() -> str:
    """The interpreter that has the clients; skips where there is none."""
    return interpreter("tool-clients")


@pytest.fixture(scope="module")
def gave(python: str, served: System) -> dict[str, Any]:
    """Return the answers of the client, by the way of asking."""
    return _run(python, "ask.py", served)


def _run(python: str, script: str, served: System) -> dict[str, Any]:
    """Return the JSON that a script prints."""
    asked = [python, str(Path(__file__).with_name(script)), f"{served.http}/v1"]
    done = subprocess.run(asked, env=client_environment(), capture_output=True, text=True, timeout=SECONDS)
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


def test_sessions_of_ten_turns_go_on_after_cut_calls(python: str, served: System) -> None:
    sessions = _run(python, "sessions.py", served)
    assert len(sessions) == 5
    for name, counts in sessions.items():
        assert (counts["turns"], counts["calls"] >= 5) == (10, True), (name, counts)
