"""The compared servers: vLLM, ours and `generate()`. Each starts on first use and is stopped while others run."""

import ctypes.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

import httpx2

from benchmarks.machine import children, family, proportional_bytes, spent
from benchmarks.pair import Pair
from benchmarks.peers.openai_client import OpenAiClient
from benchmarks.peers.turns import Process
from benchmarks.peers.worker import Spec
from benchmarks.run import Ask, Slice
from benchmarks.systems.stack import running
from specdec.cli.local import child_process, vllm
from specdec.cli.local.ports import Wanted, allot
from specdec.errors import InternalError

_START_SECONDS = 600.0
"""Timeout in seconds: with cold caches, vLLM imports and compiles for a minute or two."""
_STARTS = 2
"""Largest number of starts of a server: once, and once more if it ended."""
_WAKE = Ask((1, 2, 3), 4)
API_SERVER, ENGINE = "API server", "engine"
"""Roles of vLLM's processes."""


class Server(Protocol):
    """A server that answers requests."""

    def together(self, asks: Sequence[Ask], streams: int | None = None) -> Slice:
        """Answer all asks at once, or by `streams` streams that send the next ask when an answer has ended.

        Raises:
            InternalError: an ask was not answered.
        """

    def memory(self) -> int:
        """Bytes of memory. Memory shared by its processes counts once."""

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to each of its processes."""


@dataclass(frozen=True, slots=True)
class HttpServer:
    """A server of OpenAI's API, in its own processes."""

    client: OpenAiClient
    pid: int
    """The process that started all others."""
    off: Mapping[str, Any]
    """Request fields that turn off drafts, for an ask of γ = 0."""
    roles: Mapping[int, str] = field(default_factory=dict)
    """Roles of processes by pid. A process without an entry has the role of its parent."""

    def together(self, asks: Sequence[Ask], streams: int | None = None) -> Slice:
        """Answer all asks at once, or by `streams` streams."""
        return self.client.together(asks, self.off if asks[0].gamma == 0 else {}, streams)

    def memory(self) -> int:
        """Bytes of all its processes."""
        return sum(map(proportional_bytes, family(self.pid)))

    def cpu_seconds(self) -> Mapping[str, float]:
        """Return the processor time of each role's processes, in seconds."""
        return spent(self.pid, self.roles)

    def signal(self, number: signal.Signals) -> None:
        """Send the signal to parents before children."""
        for pid in family(self.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, number)


@dataclass(frozen=True, slots=True)
class Sequential:
    """`generate()` in its own process, which answers one request after another and waits for input when idle."""

    worker: Process

    def together(self, asks: Sequence[Ask], streams: int | None = None) -> Slice:
        """Answer one ask after another."""
        started = time.perf_counter()
        runs = [self.worker.generate(ask) for ask in asks]
        return Slice(time.perf_counter() - started, runs)

    def memory(self) -> int:
        """Bytes of its only process."""
        return self.worker.resident_bytes()

    def signal(self, number: signal.Signals) -> None:
        """Do nothing: the process needs no signals."""


_Server = TypeVar("_Server", bound=Server)


class Servers(Generic[_Server]):
    """Servers by name. As a context manager, it ends the servers that it started."""

    def __init__(self, starts: Mapping[str, Callable[[], AbstractContextManager[_Server]]]) -> None:
        self._starts = starts
        self._running: dict[str, tuple[_Server, ExitStack]] = {}
        self._failed: dict[str, list[str]] = {name: [] for name in starts}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in list(self._running):
            self._end(name)

    @contextmanager
    def asked(self, name: str) -> Iterator[_Server]:
        """Yield the server, which runs while the others are stopped.

        Raises:
            InternalError: it does not start, or failed while in use. It is then restarted once.
        """
        try:
            server = self._awake(name)
            yield server
            server.signal(signal.SIGSTOP)
        except InternalError as error:
            self._failed[name].append(error.message)
            sys.stderr.write(f"peers: {name} failed: {error.message}\n")
            self._end(name)
            raise

    def _awake(self, name: str) -> _Server:
        if name in self._running:
            server, _ = self._running[name]
            server.signal(signal.SIGCONT)
        else:
            if len(self._failed[name]) >= _STARTS:
                raise InternalError(self._failed[name][-1])
            ending, began = ExitStack(), time.monotonic()
            server = ending.enter_context(self._starts[name]())
            self._running[name] = server, ending
            sys.stderr.write(f"peers: {name} started in {time.monotonic() - began:.0f} s\n")
        server.together([_WAKE])
        return server

    def _end(self, name: str) -> None:
        if name in self._running:
            server, ending = self._running.pop(name)
            server.signal(signal.SIGCONT)
            ending.close()


@contextmanager
def hugging_face(pair: Pair, kind: str, threads: int) -> Iterator[Server]:
    """Run `generate()` with an assistant (`hf`) or with prompt lookup (`hf lookup`)."""
    with Process(Spec(kind, str(pair.target), str(pair.drafter), threads)) as worker:  # type: ignore[arg-type]
        yield Sequential(worker)


@contextmanager
def ours(pair: Pair, *arguments: str, **settings: str) -> Iterator[HttpServer]:
    """Run `specdec up`. `settings` are environment variables."""
    with running(pair, *arguments, **settings) as system:
        url = f"http://{system.http['gateway']}"
        yield HttpServer(_client(url), system.pid, {"speculation": {"mode": "off"}}, system.roles)


@contextmanager
def vllm_alone(
    python: Path,
    packages: Path,
    target: Path,
    speculative: Mapping[str, Any],
    *arguments: str,
    dtype: str = "float32",
    device: str = "cpu",
) -> Iterator[HttpServer]:
    """Run `vllm serve`.

    Args:
        python: interpreter of vLLM's environment.
        packages: a folder of additional packages. It need not exist.
        target: the model's folder.
        speculative: its `--speculative-config`, or empty for none.
        arguments: further arguments of the command.
        dtype: data type of the model.
        device: "cpu" or "cuda".
    """
    ((address,),) = allot([Wanted("", "127.0.0.1:0", 1)])
    host, port = address.split(":")
    command = [str(python.parent / "vllm"), "serve", str(target), "--host", host, "--port", port, "--dtype", dtype]
    command += ["--generation-config", "vllm", *arguments]
    command += ["--speculative-config", json.dumps(speculative)] if speculative else []
    environment = vllm_environment(python, packages, device)
    with TemporaryDirectory() as folder, (Path(folder) / "log").open("w+") as log:
        process = subprocess.Popen(child_process.tied(*command), env=environment, stdout=log, stderr=log, cwd=folder)
        try:
            _await(process, f"http://{address}", Path(log.name))
            roles = {process.pid: API_SERVER, **dict.fromkeys(children(process.pid), ENGINE)}
            yield HttpServer(_client(f"http://{address}"), process.pid, {}, roles)
        finally:
            _end(process)


def vllm_environment(python: Path, packages: Path, device: str = "cpu") -> dict[str, str]:
    """Return the environment of a process of vLLM's interpreter, without network access."""
    inherited = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    kept = inherited | {"PYTHONPATH": str(packages), "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    if device != "cpu":
        return kept
    if allocator := ctypes.util.find_library("tcmalloc_minimal"):
        kept["LD_PRELOAD"] = ":".join(filter(None, (kept.get("LD_PRELOAD", ""), allocator)))
    kept |= {"VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1"}
    return kept | vllm.environment(python, kept)


def _await(process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        with suppress(httpx2.TransportError):
            if httpx2.get(f"{url}/health", timeout=10, trust_env=False).status_code == httpx2.codes.OK:
                return
        if process.poll() is not None or time.monotonic() > deadline:
            raise InternalError(failure_in(log.read_text(encoding="utf-8", errors="replace")))
        time.sleep(0.5)


def failure_in(log: str) -> str:
    """Return the log line that explains a failed start: the first error other than a warning, else the last line."""
    lines = log.splitlines() or ["it wrote nothing"]
    return next((line for line in lines if "Error:" in line and "WARNING" not in line), lines[-1]).strip()


def _client(url: str) -> OpenAiClient:
    models = httpx2.get(f"{url}/v1/models", timeout=30, trust_env=False).json()
    return OpenAiClient(url, str(models["data"][0]["id"]))


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End the process and its children, which would outlive a parent that is killed."""
    pids = family(process.pid)
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=30)
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
