"""A verifier can be killed in the middle of a stream: another goes on from the committed tokens."""

import os
import signal
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.e2e.conftest import System, running_system

REQUEST: dict[str, Any] = {"model": "demo", "prompt": "import os\nimport sys\n\n\ndef main(", "max_tokens": 300}


def serving_verifier(system: System) -> int:
    """The pid of the verifier that has a generation now."""
    for entry in system.state:
        if entry["role"] == "verifier":
            with urllib.request.urlopen(f"http://{entry['http']}/metrics", timeout=10) as reply:
                if b"specdec_requests_running 1.0" in reply.read():
                    return int(entry["pid"])
    raise AssertionError("no verifier has the generation")


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 1, "seed": 11}])
def test_a_killed_verifier_costs_no_token_and_repeats_none(
    tmp_path: Path, system: System, sampling: dict[str, Any]
) -> None:
    undisturbed = OpenAI(base_url=f"{system.http}/v1", api_key="none", max_retries=0)
    extras = {"ignore_eos": True, "return_token_ids": True}
    expected = undisturbed.completions.create(**REQUEST, **sampling, extra_body=extras).choices[0].token_ids
    with running_system(tmp_path, "--verifiers", "2") as pair:
        client = OpenAI(base_url=f"{pair.http}/v1", api_key="none", max_retries=0, timeout=60)
        ids: list[int] = []
        for chunk in client.completions.create(**REQUEST, **sampling, stream=True, extra_body=extras):
            if not ids:
                os.kill(serving_verifier(pair), signal.SIGKILL)
            ids += chunk.choices[0].token_ids or []
    assert ids == expected
