"""After a verifier is killed in the middle of a stream, another one continues from the committed tokens."""

import re
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.clients import client_of
from tests.e2e.system import START_SECONDS, System, killed_verifier, running_system, wait_until

REQUEST: dict[str, Any] = {
    "model": "demo",
    "prompt": "import os\nimport sys\n\n\ndef main(",
    "max_tokens": 300,
    "extra_body": {"ignore_eos": True, "return_token_ids": True},
}


@pytest.fixture(scope="module")
def shared_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """Run two verifiers, which `specdec up` restarts. The settings give a slow machine time to move keys and values."""
    folder = tmp_path_factory.mktemp("pair")
    with running_system(folder, "--verifiers", "2", SPECDEC_GATEWAY_KV__PATIENCE="30") as running:
        yield running


@pytest.fixture
def pair(shared_pair: System) -> System:
    """Return the system after the verifier killed by the last test has restarted."""
    wait_until(shared_pair.has_ready_verifiers, START_SECONDS)
    return shared_pair


def tokens(system: System, request: dict[str, Any]) -> list[int]:
    """Return the tokens from a system in which no process is killed."""
    answer: Any = client_of(system).completions.create(**request)
    return list(answer.choices[0].token_ids)


def metric(system: System, name: str) -> float:
    """Return a counter of the gateway, or 0 before its first count."""
    with urllib.request.urlopen(f"{system.http}/metrics", timeout=60) as reply:
        found = re.search(rf"^{name} (\S+)$", reply.read().decode(), re.MULTILINE)
    return float(found[1]) if found else 0.0


def is_settled(system: System, name: str) -> bool:
    """Whether a counter is constant for a second, so that no earlier request is still being counted."""
    before = metric(system, name)
    time.sleep(1)
    return metric(system, name) == before


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 1, "seed": 11}])
def test_a_killed_verifier_costs_no_token_and_repeats_none(
    pair: System, system: System, sampling: dict[str, Any]
) -> None:
    request = REQUEST | sampling
    expected = tokens(system, request)
    ids: list[int] = []
    killed = 0
    for chunk in client_of(pair).completions.create(**request, stream=True):
        killed = killed or killed_verifier(pair)
        ids += chunk.choices[0].token_ids or []
    assert killed
    assert ids == expected


ANSWERS = 5
"""Most answers requested until a block is stored."""
KEPT = 128
"""Tokens after which a stored block belongs to the beginning of this answer."""


def test_a_verifier_takes_over_with_the_keys_and_values_of_the_killed_one(pair: System, system: System) -> None:
    """`specdec up` stores keys and values by default. No other test uses this prompt, so none are stored yet.

    A gateway spends a small share of its time on storing blocks, so on a busy machine an answer may end before one is
    stored. The test then sends the same request again.
    """
    request = REQUEST | {"prompt": "class Queue:\n    def __init__(self, ", "temperature": 0, "max_tokens": 900}
    expected = tokens(system, request)
    stored, restored = 'specdec_kv_block_bytes_total{direction="in"}', "specdec_kv_restored_tokens_total"
    wait_until(lambda: is_settled(pair, stored))
    before = {name: metric(pair, name) for name in (stored, restored)}
    killed, answers = 0, 0
    while not killed and answers < ANSWERS:
        ids, answers = list[int](), answers + 1
        for chunk in client_of(pair).completions.create(**request, stream=True):
            if not killed and len(ids) > KEPT and metric(pair, stored) > before[stored]:
                killed = killed_verifier(pair)
            ids += chunk.choices[0].token_ids or []
        assert ids == expected
    assert killed
    assert metric(pair, restored) >= before[restored] + 64
    wait_until(lambda: killed not in [entry["pid"] for entry in pair.of_now()])
    wait_until(lambda: [entry["role"] for entry in pair.of_now()] == [entry["role"] for entry in pair.state])
