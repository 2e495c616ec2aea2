"""Verifiers can be replaced one after the other under load: every stream has the tokens of an undisturbed one."""

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from specdec.cli.serve import command_of
from tests.e2e.system import ROOT, START_SECONDS, System, alive, environment, running_system, wait_until

PROMPTS = ("import os\n\n\ndef main(", "class Node:\n    def __init__(self, ")
SAMPLING: tuple[dict[str, Any], ...] = ({"temperature": 0}, {"temperature": 1, "seed": 5})
REQUESTS = [{"prompt": prompt, **sampling} for prompt in PROMPTS for sampling in SAMPLING]
TOKENS = 120


def tokens(http: str, request: dict[str, Any]) -> list[int]:
    """The output tokens of one stream."""
    extras = {"ignore_eos": True, "return_token_ids": True}
    with OpenAI(base_url=f"{http}/v1", api_key="none", max_retries=0, timeout=120) as client:
        stream = client.completions.create(model="demo", max_tokens=TOKENS, stream=True, extra_body=extras, **request)
        return [token for chunk in stream for token in (chunk.choices[0].token_ids or [])]


@contextmanager
def replaced(entry: dict[str, Any], variables: dict[str, str]) -> Iterator[None]:
    """Stop a verifier with SIGTERM, and run another with the same configuration inside the context."""
    log = Path(f"/proc/{entry['pid']}/fd/1").readlink()
    command = command_of("verifier", log.parents[1] / f"{log.stem}.yaml")
    os.kill(entry["pid"], signal.SIGTERM)
    wait_until(lambda: not alive(entry["pid"]))
    process = subprocess.Popen(command, cwd=ROOT, env=environment() | variables, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=START_SECONDS)


@pytest.mark.parametrize("drain_seconds", ["0", "60"], ids=["handed over", "finished"])
def test_a_rolling_drain_changes_no_token(drain_seconds: str, tmp_path: Path, system: System) -> None:
    expected = [tokens(system.http, request) for request in REQUESTS]
    variables = {"SPECDEC_VERIFIER_DRAIN_SECONDS": drain_seconds}
    two = ("--verifiers", "2", "--restarts", "0")
    over = threading.Event()

    def keep_asking(first: int) -> int:
        """Request streams until the drain is over, and return their number."""
        count = 0
        while not over.is_set():
            number = (first + count) % len(REQUESTS)
            assert tokens(pair.http, REQUESTS[number]) == expected[number]
            count += 1
        return count

    with (
        running_system(tmp_path, *two, **variables) as pair,
        ThreadPoolExecutor(3) as clients,
    ):
        asking = [clients.submit(keep_asking, number) for number in range(3)]
        try:
            verifiers = [entry for entry in pair.state if entry["role"] == "verifier"]
            with replaced(verifiers[0], variables):
                wait_until(pair.has_ready_verifiers, 120)
                with replaced(verifiers[1], variables):
                    wait_until(pair.has_ready_verifiers, 120)
                    over.set()
                    assert min(each.result(timeout=120) for each in asking) > 0
        finally:
            over.set()
