"""compose.yaml serves with drafts from confined containers, and every crashed service restarts."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from tests.containers.compose import GATEWAY, SERVICES, Compose, complete, drafted
from tests.containers.network import processes_in

pytestmark = pytest.mark.timeout(600)
PATIENCE = 300.0
"""Seconds in which a container on a busy machine must answer."""


def _wait(compose: Compose, holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, compose.logs()
        time.sleep(0.5)


@pytest.fixture(scope="module")
def tokens(compose: Compose) -> list[int]:
    """Return the tokens of plain decoding, once the system serves with drafts as well."""
    _wait(compose, lambda: drafted(complete()))
    plain = complete(speculation={"mode": "off"})
    assert plain is not None
    assert not drafted(plain)
    found: list[int] = plain["choices"][0]["token_ids"]
    return found


def test_a_streamed_completion_comes_with_drafts(tokens: list[int]) -> None:
    body = {"model": "demo", "prompt": "def main(", "max_tokens": 24, "temperature": 0, "stream": True}
    answer = httpx.post(f"{GATEWAY}/v1/completions", json=body | {"return_token_ids": True}, timeout=60)
    lines = answer.text.split("\n")
    assert [line for line in lines if line][-1] == "data: [DONE]"
    chunks: list[dict[str, Any]] = [
        json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")
    ]
    streamed = [token for chunk in chunks for choice in chunk["choices"] for token in choice.get("token_ids") or []]
    assert streamed == tokens
    assert any(drafted(chunk) for chunk in chunks)


@pytest.mark.parametrize("service", SERVICES)
def test_a_healthcheck_passes_without_systemd(compose: Compose, tokens: list[int], service: str) -> None:
    assert compose.is_healthy(service)


@pytest.mark.parametrize("service", SERVICES)
def test_a_container_has_no_rights_and_a_root_that_it_cannot_write(compose: Compose, service: str) -> None:
    status = dict(line.split(":\t", 1) for line in compose.status(service).splitlines() if ":\t" in line)
    assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0
    assert status["NoNewPrivs"] == "1"
    assert status["Uid"].split()[0] != "0"
    assert compose.inspected(service)["HostConfig"]["ReadonlyRootfs"]


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_that_crashed_comes_back(compose: Compose, tokens: list[int], service: str) -> None:
    killed = compose.kill(service)
    _wait(compose, lambda: compose.pid(service) not in (0, killed))
    _wait(compose, lambda: drafted(complete()))
    answer = complete()
    assert answer is not None
    assert answer["choices"][0]["token_ids"] == tokens


def test_nothing_is_left(compose: Compose, network: Path) -> None:
    """Runs last: every process of the network ends with the containers."""
    namespace = os.readlink(network)
    assert processes_in(namespace)
    compose("down", "--volumes", "--timeout", "20")
    _wait(compose, lambda: not processes_in(namespace))
    assert not compose.podman.ask("ps", "--all", "--quiet", "--filter", f"name={compose.project}")
