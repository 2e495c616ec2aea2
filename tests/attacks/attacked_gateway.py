"""A gateway under attack in its own process, with Valkey and a scripted verifier of the demo model."""

import asyncio
import json
import multiprocessing
import os
import sys
from collections.abc import AsyncIterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from gateway.text.tokenizer import ModelTokenizer
from specdec.cli.local.processes import Children
from tests.attacks.attacker import Answer, flood
from tests.integration.gateway.scripted_servicer import serve_scripted
from tests.integration.sessions.server import Server
from tests.support.gateway_fakes import Script, ScriptedVerifier, facts

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "models" / "demo" / "target"
CONTEXT = 8192
"""Context of the scripted model, in tokens."""


@dataclass
class Target:
    """The gateway under attack."""

    http: str
    grpc: str
    pid: int
    log: list[bytes]
    """Log lines of the gateway."""
    longest_prompt: int
    """Bytes of the longest text that may fit."""
    attacker: Executor
    """The process that sends requests."""
    store: int
    """Process id of the session store."""

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.http.split(":")
        return host, int(port)

    @property
    def rss(self) -> int:
        """Resident memory of the process, in bytes."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    async def post(self, path: str, body: dict[str, Any]) -> Answer:
        """Return the answer to one request."""
        (answer,) = await self.flood(path, body, 1)
        return answer

    async def flood(self, path: str, body: dict[str, Any], count: int) -> list[Answer]:
        """Return the answers to `count` concurrent copies of a request."""
        raw = json.dumps(body).encode()
        return await asyncio.get_running_loop().run_in_executor(self.attacker, flood, self.address, path, raw, count)


@asynccontextmanager
async def attacked_gateway(folder: Path, verifier: str = "") -> AsyncIterator[Target]:
    """Run a gateway whose files are in `folder`, with the verifier at an address, by default a scripted one."""
    tokenizer = ModelTokenizer.load(DEMO)
    info = replace(facts(vocab_size=2048, context_length=CONTEXT), tokenizer_hash=tokenizer.fingerprint)
    async with AsyncExitStack() as stack:
        store = Server(folder, stack.enter_context(Children(grace=5)))
        verifier = verifier or await serve_scripted(ScriptedVerifier(script=Script(text="x = 1"), info=info), stack)
        config = folder / "gateway.yaml"
        values = {"http": "127.0.0.1:0", "address": "127.0.0.1:0", "verifiers": [verifier], "redis_url": store.url}
        config.write_text(yaml.safe_dump({"model": {"path": str(DEMO), "name": "demo"}} | values))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway", "--config", str(config), stderr=asyncio.subprocess.PIPE, cwd=ROOT,
            limit=2**26,
        )  # fmt: skip
        stack.push_async_callback(_end, process)
        log: list[bytes] = []
        started = await _read_until_started(process, log)
        reading = asyncio.create_task(_read(process, log))
        stack.callback(reading.cancel)
        attacker = stack.enter_context(ProcessPoolExecutor(1, multiprocessing.get_context("spawn")))
        longest = CONTEXT * tokenizer.longest_token
        made = Target(started["http"], started["grpc"], process.pid, log, longest, attacker, store.pid)
        assert (await made.post("/v1/completions", {"prompt": "x", "max_tokens": 2}))[0] == 200
        yield made


async def _read_until_started(process: asyncio.subprocess.Process, log: list[bytes]) -> dict[str, str]:
    assert process.stderr is not None
    async with asyncio.timeout(60):
        async for line in process.stderr:
            log.append(line)
            if b"gateway_started" in line:
                started: dict[str, str] = json.loads(line)
                return started
    raise AssertionError("the gateway ended without serving")


async def _read(process: asyncio.subprocess.Process, log: list[bytes]) -> None:
    assert process.stderr is not None
    async for line in process.stderr:
        log.append(line)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
        await process.wait()
