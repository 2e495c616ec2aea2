"""A verifier can be killed in the middle of a stream: another goes on from the committed tokens."""

import json
import os
import re
import signal
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.clients import client_of
from tests.e2e.system import System, alive, running_system, wait_until

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
    undisturbed = client_of(system)
    extras = {"ignore_eos": True, "return_token_ids": True}
    expected = undisturbed.completions.create(**REQUEST, **sampling, extra_body=extras).choices[0].token_ids
    with running_system(tmp_path, "--verifiers", "2") as pair:
        client = client_of(pair)
        ids: list[int] = []
        for chunk in client.completions.create(**REQUEST, **sampling, stream=True, extra_body=extras):
            if not ids:
                os.kill(serving_verifier(pair), signal.SIGKILL)
            ids += chunk.choices[0].token_ids or []
    assert ids == expected


def metric(address: str, name: str) -> float:
    """A counter of a gateway; 0 before it first counts."""
    with urllib.request.urlopen(f"{address}/metrics", timeout=10) as reply:
        found = re.search(rf"^{name} (\S+)$", reply.read().decode(), re.MULTILINE)
    return float(found[1]) if found else 0.0


def test_a_verifier_takes_over_with_the_keys_and_values_of_the_killed_one(tmp_path: Path, system: System) -> None:
    """`specdec up` keeps keys and values by default; a slow machine is given time to move them."""
    extras = {"ignore_eos": True, "return_token_ids": True}
    undisturbed = client_of(system)
    expected = undisturbed.completions.create(**REQUEST, temperature=0, extra_body=extras).choices[0].token_ids
    with running_system(tmp_path, "--verifiers", "2", SPECDEC_GATEWAY_KV__PATIENCE="30") as pair:
        client = client_of(pair)
        ids: list[int] = []
        killed = 0
        for chunk in client.completions.create(**REQUEST, temperature=0, stream=True, extra_body=extras):
            if not killed and metric(pair.http, 'specdec_kv_block_bytes_total{direction="in"}') > 0:
                killed = serving_verifier(pair)
                os.kill(killed, signal.SIGKILL)
            ids += chunk.choices[0].token_ids or []
        assert killed
        assert ids == expected
        assert metric(pair.http, "specdec_kv_restored_tokens_total") >= 64
        wait_until(lambda: "verifier-" in pair.log.read_text() and "is started again" in pair.log.read_text())
        restarted = [entry["pid"] for entry in json.loads((tmp_path / "state.json").read_text())]
        assert killed not in restarted
        assert len(restarted) == len(pair.state)
    wait_until(lambda: not any(alive(pid) for pid in restarted))
