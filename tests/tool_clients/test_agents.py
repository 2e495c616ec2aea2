"""LiteLLM and pydantic-ai, unmodified, hold sessions of ten turns with tools and cut calls over every API."""

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
    return interpreter("agent-clients")


@pytest.fixture(scope="module")
def found(python: str, served: System, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The counts and objects of every session."""
    written = tmp_path_factory.mktemp("agents") / "found.json"  # LiteLLM writes notes to stdout
    command = [python, str(Path(__file__).with_name("agents.py")), served.http, str(written)]
    done = subprocess.run(command, env=client_environment(), capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(written.read_text())
    return result


def test_litellm_holds_ten_turns_with_cut_calls(found: dict[str, Any]) -> None:
    sessions = {name: counts for name, counts in found.items() if name.startswith("litellm")}
    assert len(sessions) == 5
    for name, counts in sessions.items():
        assert (counts["turns"], counts["calls"] >= 2) == (10, True), (name, counts)


def test_pydantic_ai_gets_objects_for_ten_turns(found: dict[str, Any]) -> None:
    for api in ("chat", "responses", "messages"):
        people = found[f"pydantic-ai {api}"]["people"]
        assert len(people) == 10
        assert all(len(person["name"]) <= 8 and 0 <= person["age"] <= 99 for person in people)
        stream = found[f"pydantic-ai {api} stream"]
        assert stream["text"] == stream["whole"] != ""
