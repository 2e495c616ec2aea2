"""`python -m gateway` as a process: it starts, reports errors, never loads torch, and stops on request."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from gateway.text.tokenizer import ModelTokenizer
from specdec.cli.local import ports, valkey
from specdec.cli.local.launch import wait_for_store
from specdec.cli.local.processes import ChildCommand, Children
from specdec.cli.local.signals import Stop
from specdec.protos.verifier.v1 import verifier_pb2_grpc as pb_grpc
from specdec.serving.rpc.server import start_grpc
from tests.integration.gateway.scripted_servicer import ScriptedServicer
from tests.integration.sessions.server import Server
from tests.support.gateway_fakes import ScriptedVerifier, facts

ROOT = Path(__file__).parents[3]
DEMO = ROOT / "models" / "demo" / "target"


@pytest.fixture
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Children(grace=5) as children:
        yield Server(tmp_path_factory.mktemp("valkey"), children).url


@asynccontextmanager
async def verifier(tokenizer_hash: str) -> AsyncIterator[str]:
    """Address of a scripted verifier of the demo model."""
    scripted = ScriptedVerifier(info=replace(facts(vocab_size=2048), tokenizer_hash=tokenizer_hash))
    server = await start_grpc(
        "127.0.0.1:0", lambda it: pb_grpc.add_VerifierServiceServicer_to_server(ScriptedServicer(scripted), it), ()
    )
    try:
        yield server.address
    finally:
        await server.stop(0)


def write_config(folder: Path, **values: Any) -> Path:
    path = folder / "gateway.yaml"
    addresses = {"http": "127.0.0.1:0", "address": "127.0.0.1:0"}
    path.write_text(yaml.safe_dump({"model": {"path": str(DEMO), "name": "demo"}} | addresses | values))
    return path


def maps_torch(pid: int) -> bool:
    """Whether a process has mapped any file of torch."""
    return "/torch/" in Path(f"/proc/{pid}/maps").read_text()


async def start(config: Path) -> tuple[asyncio.subprocess.Process, str]:
    """Start the process and return it with its HTTP address, once it serves."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", "--config", str(config), stderr=asyncio.subprocess.PIPE, cwd=ROOT
    )
    assert process.stderr is not None
    async with asyncio.timeout(60):
        async for line in process.stderr:
            event = json.loads(line)  # every line is JSON, also the first
            if event["event"] == "gateway_started":
                return process, event["http"]
    raise AssertionError("the gateway ended without serving")


async def test_it_serves_without_torch_and_ends_on_sigterm(tmp_path: Path, redis_url: str) -> None:
    async with verifier(ModelTokenizer.load(DEMO).fingerprint) as address:
        process, http = await start(write_config(tmp_path, verifiers=[address], redis_url=redis_url))
        try:
            async with httpx2.AsyncClient(base_url=f"http://{http}") as client:
                assert (await client.get("/readyz")).json()["missing"] == []
                answer = await client.post("/v1/completions", json={"prompt": "def f(", "max_tokens": 5})
                assert answer.json()["usage"]["completion_tokens"] == 5
            assert not maps_torch(process.pid)
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), 30) == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"verifierz": ["127.0.0.1:1"]}, "did you mean 'verifiers'"),
        ({"model": {"path": "/nowhere"}}, "model.path /nowhere: no such folder"),
        ({"verifiers": ["nowhere"]}, "verifiers.0: must be host:port"),
    ],
)
def test_a_wrong_setting_is_one_line_and_status_2(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    config = write_config(tmp_path, **change)
    ran = subprocess.run(
        [sys.executable, "-m", "gateway", "--config", str(config)], capture_output=True, text=True, timeout=60, cwd=ROOT
    )
    assert ran.returncode == 2
    assert says in ran.stderr.splitlines()[-1]
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(("setting", "name"), [("redis_url", "session store"), ("kv", "block store")])
def test_redis_cluster_is_refused_by_name_when_it_starts(
    setting: str, name: str, tmp_path: Path, redis_url: str
) -> None:
    port, bus = ports.free("127.0.0.1"), ports.free("127.0.0.1")
    # Without an explicit bus port the node uses its port + 10000, which the kernel may assign to other processes.
    settings = ("--cluster-enabled", "yes", "--cluster-port", str(bus), "--bind", "127.0.0.1", "--dir", str(tmp_path))
    argv = (str(valkey.resolve().path), "--port", str(port), *settings)
    cluster = f"redis://127.0.0.1:{port}/0"
    given: dict[str, Any] = {"redis_url": cluster} if setting == "redis_url" else {"kv": {"redis_url": cluster}}
    urls = {"redis_url": redis_url} | given
    with Children(grace=5) as children:
        node = children.start(ChildCommand("node", "redis", argv, tmp_path / "node.log", ""), os.environ)
        wait_for_store(node, cluster, Stop())
        config = write_config(tmp_path, verifiers=["127.0.0.1:1"], **urls)
        command = [sys.executable, "-m", "gateway", "--config", str(config)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert ran.returncode == 2
    assert f"{name} cluster: Redis Cluster is not supported" in ran.stderr.splitlines()[-1]


async def checked(config: Path) -> tuple[int | None, dict[str, dict[str, str]]]:
    """Run the check and return its exit status and findings."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", "check", "--config", str(config), stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    async with asyncio.timeout(60):
        out, _ = await process.communicate()
    return process.returncode, {line["name"]: line for line in map(json.loads, out.splitlines())}


async def test_the_check_finds_everything_in_order(tmp_path: Path, redis_url: str) -> None:
    async with verifier(ModelTokenizer.load(DEMO).fingerprint) as address:
        status, lines = await checked(write_config(tmp_path, verifiers=[address], redis_url=redis_url))
    assert status == 0
    assert {line["status"] for line in lines.values()} == {"ok"}
    assert {"tokenizer", f"verifier {address}", "session store", "session store eviction", "http"} <= set(lines)
    assert ModelTokenizer.load(DEMO).fingerprint in lines["tokenizer"]["detail"]


@pytest.mark.parametrize(
    ("discovery", "status", "said"),
    [
        ({"kind": "kubernetes", "names": ["verifier"]}, "fail", "no way to the Kubernetes API"),
        ({"kind": "dns", "names": ["localhost:1"]}, "ok", "dns: "),
    ],
)
async def test_the_check_asks_the_discovery_for_verifiers(
    discovery: dict[str, object], status: str, said: str, tmp_path: Path, redis_url: str
) -> None:
    _, lines = await checked(write_config(tmp_path, discovery=discovery, redis_url=redis_url))
    assert lines["discovery"]["status"] == status
    assert said in lines["discovery"]["detail"]


async def test_the_check_names_what_is_wrong_and_what_to_do(tmp_path: Path) -> None:
    async with verifier("other") as address:
        config = write_config(tmp_path, verifiers=[address, "127.0.0.1:1"], redis_url="redis://127.0.0.1:1")
        status, lines = await checked(config)
    assert status == 1
    found = {name: line["status"] for name, line in lines.items()}
    assert found[f"verifier {address}"] == "fail"
    assert found["verifier 127.0.0.1:1"] == "warn"
    assert found["session store"] == "fail"
    assert all(line["remedy"] for line in lines.values() if line["status"] != "ok")
