"""A verifier on vLLM, as a process in its own Python environment, for tests that connect to it."""

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import yaml

from specdec.cli.local.vllm import environment
from tests.integration.verifier.client import Client, connected
from tests.support.addresses import free_addresses

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("SPECDEC_TEST_VLLM_PYTHON", ROOT / "build/vllm/.venv/bin/python"))
HAS_VLLM = pytest.mark.skipif(not PYTHON.is_file(), reason="there is no vLLM here: `make vllm`")
START_SECONDS = 500.0
"""A generous limit: on shared cores, importing vLLM takes a minute."""


@dataclass(frozen=True)
class VllmVerifier:
    """A running verifier."""

    client: Client
    address: str
    process: "subprocess.Popen[bytes]"
    log: Path

    def kill(self) -> None:
        """Kill the process, as the loss of a machine would."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@asynccontextmanager
async def vllm_verifier(target: Path, folder: Path, *drafters: str, **settings: Any) -> AsyncIterator[VllmVerifier]:
    """Run a verifier of the model in `target` that has met its drafters. Its files are in `folder`."""
    (address,) = free_addresses(1)
    config = {
        "backend": "vllm",
        "model": {"path": str(target)},
        "address": address,
        "http": "127.0.0.1:0",
        "kv_bytes": 2**26,
        "drafters": list(drafters),
        "drafting": {"timeout": 30.0},
        **settings,
    }
    (folder / "vllm.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    process, log = _started(folder / "vllm.yaml", folder / "vllm.log"), folder / "vllm.log"
    try:
        async with connected(address) as client:
            await _until_ready(client, process, log)
            yield VllmVerifier(client, address, process, log)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


async def _until_ready(client: Client, process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Wait until the model is loaded and every drafter met. On failure, raise with the end of the log."""
    async with asyncio.timeout(START_SECONDS):
        while True:
            ended = process.poll()
            assert ended is None, f"it ended with {ended}: {_end_of(log)}"
            with suppress(grpc.aio.AioRpcError):
                if all(each.state == "ready" for each in (await client.info()).drafters):
                    return
            await asyncio.sleep(0.2)


def _started(config: Path, log: Path) -> "subprocess.Popen[bytes]":
    command = (PYTHON, "-m", "verifier_service", "--config", config)
    with log.open("wb") as output:
        return subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=_environment(), start_new_session=True
        )


def _end_of(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-3000:]


def _environment() -> dict[str, str]:
    own = dict(os.environ) | {"PYTHONPATH": str(ROOT), "VLLM_TARGET_DEVICE": "cpu", "HF_HUB_OFFLINE": "1"}
    return own | environment(PYTHON, own)
