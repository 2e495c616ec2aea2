"""A beam search whose verifier or drafter is killed finds what it finds without that."""

import os
import signal
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.e2e.clients import client_of
from tests.e2e.system import NO_DRAFT_IS_LATE, START_SECONDS, System, running_system, wait_until

REQUEST: dict[str, Any] = {
    "model": "demo",
    "prompt": "import os\nimport sys\n\n\ndef main(",
    "max_tokens": 150,
    "extra_body": {
        "use_beam_search": True,
        "beam_width": 4,
        "ignore_eos": True,
        "return_token_ids": True,
        "speculation": {"gamma": 2},
    },
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """Run two verifiers and a drafter, which `specdec up` restarts."""
    folder = tmp_path_factory.mktemp("beams")
    with running_system(folder, "--verifiers", "2", **NO_DRAFT_IS_LATE) as running:
        yield running


def metrics(entry: dict[str, Any]) -> bytes:
    try:
        with urllib.request.urlopen(f"http://{entry['http']}/metrics", timeout=60) as reply:
            page: bytes = reply.read()
            return page
    except OSError:
        return b""


def searching(system: System) -> dict[str, Any] | None:
    """Return the verifier that has a beam search now."""
    verifiers = (entry for entry in system.of_now() if entry["role"] == "verifier")
    return next((entry for entry in verifiers if b"specdec_beam_searches_running 1.0" in metrics(entry)), None)


def searched(system: System) -> tuple[list[int], int]:
    """Return the tokens of a search, and its accepted steps."""
    answer: Any = client_of(system).completions.create(**REQUEST)
    report = answer.speculation["beam_search"]
    assert report["num_steps"] == 150
    return list(answer.choices[0].token_ids), report["num_accepted_steps"]


@pytest.mark.parametrize("role", ["drafter", "verifier"])
def test_a_killed_process_changes_no_result(pair: System, role: str) -> None:
    wait_until(pair.has_ready_verifiers, START_SECONDS)
    wait_until(pair.has_ready_drafters, START_SECONDS)
    expected, accepted = searched(pair)
    assert accepted > 0
    with ThreadPoolExecutor() as threads:
        search = threads.submit(searched, pair)
        wait_until(lambda: searching(pair) is not None)
        busy = searching(pair)
        assert busy is not None
        victim = busy if role == "verifier" else next(each for each in pair.of_now() if each["role"] == role)
        os.kill(victim["pid"], signal.SIGKILL)
        assert not search.done()
        assert search.result()[0] == expected
