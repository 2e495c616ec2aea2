"""A verifier can be killed in the middle of a stream: another one continues from the committed tokens."""

import os
import re
import signal
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI
from redis import Redis

from specdec.cli.processes import Children
from tests.e2e.system import System, alive, running_system
from tests.integration.sessions.server import Server

REQUEST: dict[str, Any] = {"model": "demo", "prompt": "import os\nimport sys\n\n\ndef main(", "max_tokens": 300}


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """Three verifiers behind one gateway; two tests kill one each."""
    with running_system(tmp_path_factory.mktemp("trio"), "--verifiers", "3") as running:
        yield running


@pytest.fixture
def server() -> Iterator[Server]:
    """A Redis for keys and values."""
    with tempfile.TemporaryDirectory(prefix="specdec-test-") as folder, Children(grace=5) as children:
        yield Server(Path(folder), children)


def serving_verifier(system: System) -> int:
    """The process id of the verifier that runs a generation now."""
    for entry in system.state:
        if entry["role"] == "verifier" and alive(entry["pid"]):
            with urllib.request.urlopen(f"http://{entry['http']}/metrics", timeout=10) as reply:
                if b"specdec_requests_running 1.0" in reply.read():
                    return int(entry["pid"])
    raise AssertionError("no verifier has the generation")


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 1, "seed": 11}])
def test_a_killed_verifier_costs_no_token_and_repeats_none(
    trio: System, system: System, sampling: dict[str, Any]
) -> None:
    undisturbed = OpenAI(base_url=f"{system.http}/v1", api_key="none", max_retries=0)
    extras = {"ignore_eos": True, "return_token_ids": True}
    expected = undisturbed.completions.create(**REQUEST, **sampling, extra_body=extras).choices[0].token_ids
    client = OpenAI(base_url=f"{trio.http}/v1", api_key="none", max_retries=0, timeout=60)
    ids: list[int] = []
    for chunk in client.completions.create(**REQUEST, **sampling, stream=True, extra_body=extras):
        if not ids:
            os.kill(serving_verifier(trio), signal.SIGKILL)
        ids += chunk.choices[0].token_ids or []
    assert ids == expected


def test_a_verifier_takes_over_with_the_keys_and_values_of_the_killed_one(
    tmp_path: Path, system: System, server: Server
) -> None:
    extras = {"ignore_eos": True, "return_token_ids": True}
    undisturbed = OpenAI(base_url=f"{system.http}/v1", api_key="none", max_retries=0)
    expected = undisturbed.completions.create(**REQUEST, temperature=0, extra_body=extras).choices[0].token_ids
    kv = {"REDIS_URL": server.url, "BLOCK_TOKENS": "32", "PATIENCE": "30"}
    variables = {f"SPECDEC_GATEWAY_KV__{name}": value for name, value in kv.items()}
    with running_system(tmp_path, "--verifiers", "2", **variables) as pair, Redis.from_url(server.url) as blocks:
        client = OpenAI(base_url=f"{pair.http}/v1", api_key="none", max_retries=0, timeout=60)
        ids: list[int] = []
        killed = 0
        for chunk in client.completions.create(**REQUEST, temperature=0, stream=True, extra_body=extras):
            if not killed and blocks.dbsize() > 1:  # one key counts the bytes of the user
                killed = serving_verifier(pair)
                os.kill(killed, signal.SIGKILL)
            ids += chunk.choices[0].token_ids or []
        with urllib.request.urlopen(f"{pair.http}/metrics", timeout=10) as reply:
            restored = re.search(r"specdec_kv_restored_tokens_total (\d\S*)", reply.read().decode())
    assert killed
    assert ids == expected
    assert restored is not None
    assert float(restored[1]) >= 32
