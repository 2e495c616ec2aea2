"""A whole system on this machine. Faults can be injected into each process and each connection of it."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from specdec.cli.local import health, launch, plan, valkey, vllm
from specdec.cli.local.launch import Folders
from specdec.cli.local.plan import Service
from specdec.cli.local.processes import Child, ChildCommand, Children
from specdec.cli.settings import UpSettings
from tests.chaos.proxy import Proxy

START_SECONDS = 300.0
_KV_PATIENCE = 5.0
"""Seconds that a generation waits for its blocks: on shared cores, a verifier that starts delays the other one."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Processes to start and their settings."""

    target: Path
    drafter: Path
    replicas: int = 2
    """Number of drafters, of verifiers and of gateways. There is one Redis."""
    lease: float = 2.0
    """The gateways' lease on a session, in seconds."""
    durable: bool = True
    """Whether Redis writes its log to the disk before it answers."""
    modules: Mapping[str, str] = field(default_factory=lambda: dict(plan.MODULES))
    """Python module that runs for each role."""
    vllm_python: Path | None = None
    """Interpreter of an environment with vLLM, which runs the last verifiers. If None, all verifiers are native."""
    vllm_verifiers: int = 1
    """Number of verifiers that run on vLLM if there is an interpreter."""
    kv_bytes: int = 0
    """Memory of the store of KV blocks, which gets no faults; 0 starts none.

    With a store, gateways also log every attempt at a verifier.
    """


@dataclass(slots=True)
class Member:
    """One process, with the proxy through which all connections to it pass."""

    command: ChildCommand
    healthy: Callable[[], bool]
    proxy: Proxy
    children: Children
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables added to the inherited environment."""
    busy: bool = False
    """Whether a fault is being injected or repaired."""
    child: Child | None = None

    @property
    def role(self) -> str:
        """The role: `redis`, `redis-kv`, `drafter`, `verifier` or `gateway`."""
        return self.command.role

    def start(self) -> None:
        """Start the process. Call it only from the main thread."""
        environment = os.environ | {"OMP_NUM_THREADS": "1", **self.environment}
        self.child = self.children.start(self.command, environment)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        if self.child is None or self.child.exit_status is not None:
            raise RuntimeError(f"{self.command.name} does not run")
        os.kill(self.child.pid, number)

    async def up(self) -> None:
        """Wait until the process is healthy."""
        async with asyncio.timeout(START_SECONDS):
            while not await asyncio.to_thread(self.healthy):
                if self.child is None or self.child.exit_status is not None:
                    raise RuntimeError(f"{self.command.name} ended:\n{self.child and self.child.log_tail()}")
                await asyncio.sleep(0.05)


@dataclass(frozen=True, slots=True)
class Cluster:
    """The running processes."""

    members: tuple[Member, ...]
    redis_url: str
    """URL of Redis itself, without a proxy."""
    gateways: tuple[str, ...]
    """HTTP addresses of the gateways themselves, without a proxy."""

    def of(self, role: str) -> list[Member]:
        """Return the processes of a role."""
        return [member for member in self.members if member.role == role]

    @property
    def urls(self) -> list[str]:
        """Base URLs of the gateways for clients. Each leads through a proxy."""
        return [f"http://{member.proxy.address}" for member in self.of("gateway")]


@asynccontextmanager
async def running(setup: Setup, folder: Path) -> AsyncIterator[Cluster]:
    """Start a system in `folder` and wait until it is healthy. The path must be short enough for a socket file."""
    with Children(grace=5.0) as children:
        async with AsyncExitStack() as stack:
            cluster = await _built(setup, folder, children, stack)
            for role in ("redis", "redis-kv", "drafter", "verifier", "gateway"):
                for member in cluster.of(role):
                    member.start()
                await asyncio.gather(*(member.up() for member in cluster.of(role)))
            yield cluster


async def _built(setup: Setup, folder: Path, children: Children, stack: AsyncExitStack) -> Cluster:
    settings = UpSettings(
        target=setup.target,
        drafter=setup.drafter,
        drafters=setup.replicas,
        verifiers=setup.replicas,
        gateways=setup.replicas,
        **dict.fromkeys(
            ("http", "grpc", "drafter_address", "verifier_address", "drafter_metrics", "verifier_metrics"),
            "127.0.0.1:0",
        ),
    )
    addresses = plan.allot(settings)

    async def proxy(server: str) -> Proxy:
        return await stack.enter_async_context(Proxy(server))

    store = _store(folder, setup.durable)
    members = [
        Member(_store_command(store, folder), lambda: valkey.answers(store.url), await proxy(_socket(store)), children)
    ]
    proxies = {address: await proxy(address) for address in (*addresses.drafter, *addresses.verifier)}
    password = store.url.removeprefix("unix://:").rpartition("@")[0]
    dialled = f"redis://:{password}@{members[0].proxy.address}"
    kv = valkey.embed_kv(valkey.resolve(), folder, setup.kv_bytes) if setup.kv_bytes else None
    if kv is not None:
        command = ChildCommand(kv.name, "redis-kv", kv.argv, folder / f"{kv.name}.log", "")
        kv_answers = partial(valkey.answers, kv.url)
        members.append(Member(command, kv_answers, await proxy(_socket(kv)), children))
    for service in plan.services(settings, addresses, dialled, kv.url if kv else ""):
        own = proxies.get(service.grpc) or await proxy(service.http)
        check = partial(health.healthy, service.role, service.http, service.grpc)
        placed = _on_vllm(_dialling_proxies(service, proxies, setup), setup)
        variables = vllm.environment(placed.python, os.environ) if placed.python else {}
        members.append(Member(_command(placed, folder, setup.modules), check, own, children, variables))
    return Cluster(tuple(members), store.url, tuple(addresses.gateway_http))


def _store(folder: Path, durable: bool) -> valkey.Embedded:
    """Return the server that `specdec up` would embed. Unless `durable`, it writes nothing to the disk."""
    store = valkey.embed(valkey.resolve(), folder)
    if not durable:
        config = Path(store.argv[1])
        config.write_text(config.read_text().replace("appendonly yes", "appendonly no"))
    return store


def _store_command(store: valkey.Embedded, folder: Path) -> ChildCommand:
    return ChildCommand("redis-1", "redis", store.argv, folder / "redis-1.log", "")


def _socket(store: valkey.Embedded) -> str:
    return store.url.rpartition("@")[2]


def _dialling_proxies(service: Service, proxies: Mapping[str, Proxy], setup: Setup) -> Service:
    """Return the service with its peers' proxies as addresses. A gateway also gets the lease and frequent comments."""
    config = dict(service.config)
    for peers in ("drafters", "verifiers"):
        if peers in config:
            config[peers] = [proxies[address].address for address in config[peers]]
    if service.role == "gateway":
        config |= {"lease": setup.lease, "ping": 0.5}
        if setup.kv_bytes:
            config["kv"] = {**config["kv"], "patience": _KV_PATIENCE}
            config["log"] = {**config["log"], "level": "debug"}
    return replace(service, config=config)


def _on_vllm(service: Service, setup: Setup) -> Service:
    """Return the service, on vLLM if it is one of the last verifiers and an environment for vLLM is given."""
    last = [f"verifier-{setup.replicas - each}" for each in range(setup.vllm_verifiers)]
    if setup.vllm_python is None or service.name not in last:
        return service
    return replace(service, config={**service.config, "backend": "vllm"}, python=setup.vllm_python)


def _command(service: Service, folder: Path, modules: Mapping[str, str]) -> ChildCommand:
    config = launch.write_config(Folders(folder, folder), service)
    argv = (str(service.python or sys.executable), "-m", modules[service.role], "--config", str(config))
    log, preload = folder / f"{service.name}.log", () if service.python else plan.PRELOAD[service.role]
    return ChildCommand(service.name, service.role, argv, log, "", preload)
