"""Verifiers can be replaced one by one under load: every stream has the tokens of an undisturbed one."""

import itertools
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from specdec.cli.local.plan import PRELOAD
from specdec.cli.local.processes import ChildCommand, Children
from specdec.cli.local.serve import command_of
from tests.e2e.system import START_SECONDS, System, alive, environment, running_system, wait_until

PROMPTS = ("import os\n\n\ndef main(", "class Node:\n    def __init__(self, ")
SAMPLING: tuple[dict[str, Any], ...] = ({"temperature": 0}, {"temperature": 1, "seed": 5})
REQUESTS = [{"prompt": prompt, **sampling} for prompt in PROMPTS for sampling in SAMPLING]
TOKENS = 120
CLIENTS = 3


def tokens(http: str, request: dict[str, Any]) -> list[int]:
    """Return the output tokens of one stream."""
    extras = {"ignore_eos": True, "return_token_ids": True}
    with OpenAI(base_url=f"{http}/v1", api_key="none", max_retries=0, timeout=120) as client:
        stream = client.completions.create(model="demo", max_tokens=TOKENS, stream=True, extra_body=extras, **request)
        return [token for chunk in stream for token in (chunk.choices[0].token_ids or [])]


@pytest.fixture(scope="module")
def expected(system: System) -> list[list[int]]:
    """Return the tokens of each request, from a system in which no verifier is replaced."""
    return [tokens(system.http, request) for request in REQUESTS]


@contextmanager
def replaced(entry: dict[str, Any], variables: dict[str, str]) -> Iterator[None]:
    """Stop a verifier with SIGTERM, and run another with the same configuration inside the context."""
    log = Path(f"/proc/{entry['pid']}/fd/1").readlink()
    command = command_of("verifier", log.parents[1] / f"{log.stem}.yaml")
    os.kill(entry["pid"], signal.SIGTERM)
    wait_until(lambda: not alive(entry["pid"]))
    with Children(START_SECONDS) as children:
        given = ChildCommand("verifier", "verifier", command, Path(os.devnull), "", PRELOAD["verifier"])
        children.start(given, environment() | variables)
        yield


@pytest.mark.parametrize("drain_seconds", ["0", "60"], ids=["handed over", "finished"])
def test_a_rolling_drain_changes_no_token(drain_seconds: str, tmp_path: Path, expected: list[list[int]]) -> None:
    variables = {"SPECDEC_VERIFIER_DRAIN_SECONDS": drain_seconds}
    two = ("--verifiers", "2", "--restarts", "0")
    wanted, over = threading.Event(), threading.Event()
    done: list[int] = []

    def keep_asking(first: int) -> None:
        """Request streams until the drain is over."""
        for turn in itertools.count(first):
            while not wanted.wait(0.1) and not over.is_set():
                pass
            if over.is_set():
                return
            number = turn % len(REQUESTS)
            assert tokens(pair.http, REQUESTS[number]) == expected[number]
            done.append(number)

    def under_load(streams: int = CLIENTS) -> None:
        """Return in the middle of streams, after `streams` more of them have ended correctly."""
        wanted.set()
        enough = len(done) + streams
        wait_until(lambda: len(done) >= enough or any(each.done() for each in asking))

    with (
        running_system(tmp_path, *two, **variables) as pair,
        ThreadPoolExecutor(CLIENTS) as clients,
    ):
        asking = [clients.submit(keep_asking, number) for number in range(CLIENTS)]
        try:
            verifiers = [entry for entry in pair.state if entry["role"] == "verifier"]
            under_load()
            with replaced(verifiers[0], variables):
                wanted.clear()  # a starting process needs the cores
                wait_until(pair.has_ready_verifiers)
                under_load()
                with replaced(verifiers[1], variables):
                    wanted.clear()
                    wait_until(pair.has_ready_verifiers)
                    under_load()
                    over.set()
                    for each in asking:
                        each.result(timeout=START_SECONDS)
        finally:
            over.set()
