"""Conversations stored by `--data` survive a restart of the command."""

import json
import urllib.request
from pathlib import Path
from typing import Any

from tests.e2e.system import System, running_system

ASKED = {"model": "demo", "user": "ann", "max_tokens": 12, "temperature": 0, "ignore_eos": True}


def call(system: System, path: str, **body: Any) -> dict[str, Any]:
    """POST the body, or send a GET without one."""
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(f"{system.http}/v1/{path}", data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        found: dict[str, Any] = json.load(reply)
        return found


def shown(system: System, session: str) -> dict[str, Any]:
    """Return a session without its remaining seconds."""
    found = call(system, f"sessions/{session}?user=ann")
    del found["expires_in"]
    return found


def test_a_conversation_goes_on_after_the_command_was_started_again(tmp_path: Path) -> None:
    arguments = ("--drafters", "0", "--data", str(tmp_path / "data"))
    with running_system(tmp_path, *arguments) as first:
        session = call(first, "sessions", user="ann")["id"]
        call(first, "completions", **ASKED, prompt="import os\n", session=session)
        before = shown(first, session)
    assert (before["turn"], before["state"]) == (1, "idle")
    with running_system(tmp_path, *arguments) as second:
        assert shown(second, session) == before
        turn = call(second, "completions", **ASKED, prompt="\nimport sys\n", session=session, expect_turn=1)
        after = shown(second, session)
    assert turn["session"] == {"id": session, "turn": 2}
    assert turn["usage"]["prompt_tokens"] > before["tokens"]
    assert after["tokens"] > before["tokens"] + 12
