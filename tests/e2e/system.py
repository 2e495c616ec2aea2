"""The whole system as real processes, started by the product's own command."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec.cli.local import forked

ROOT = Path(__file__).parents[2]
SPECDEC = str(Path(sys.executable).with_name("specdec"))
DEMO = ROOT / "models" / "demo"
START_SECONDS = 300
NO_DRAFT_IS_LATE = {"SPECDEC_VERIFIER_DRAFTING__TIMEOUT": "30"}
"""Settings with which a round waits for its draft on a busy machine. For systems whose drafter is not disturbed."""
PORTS = ("--http", "--grpc", "--drafter-address", "--verifier-address", "--drafter-metrics", "--verifier-metrics")


@dataclass(frozen=True)
class System:
    """A running `specdec up`."""

    process: subprocess.Popen[str]
    state: list[dict[str, Any]]
    """Every process except `up` itself, as listed when all of them were healthy."""
    log: Path
    state_file: Path

    def one(self, role: str) -> dict[str, Any]:
        """Return the first process of a role."""
        return next(entry for entry in self.state if entry["role"] == role)

    @property
    def http(self) -> str:
        """Base URL of the gateway."""
        return f"http://{self.one('gateway')['http']}"

    @property
    def grpc(self) -> str:
        """Address of the gateway's gRPC API."""
        return str(self.one("gateway")["grpc"])

    def pids(self) -> list[int]:
        """Process ids of the system, except that of `up`."""
        return [entry["pid"] for entry in self.state]

    def of_now(self) -> list[dict[str, Any]]:
        """Return the current state, in which restarted processes have new ids."""
        if not self.state_file.exists():
            return self.state
        found: list[dict[str, Any]] = json.loads(self.state_file.read_text())
        return found

    def has_ready_verifiers(self) -> bool:
        """Whether every verifier is ready according to itself and to the gateway."""
        try:
            for entry in self.state:
                if entry["role"] == "verifier":
                    urllib.request.urlopen(f"http://{entry['http']}/readyz", timeout=60).close()
            with urllib.request.urlopen(f"{self.http}/readyz", timeout=60) as reply:
                return set(json.loads(reply.read())["verifiers"].values()) == {"ready"}
        except OSError:
            return False

    def has_ready_drafters(self) -> bool:
        """Whether the gateway reports that a verifier has met a drafter. Cheaper than a request for an answer."""
        try:
            with urllib.request.urlopen(f"{self.http}/v1/models", timeout=60) as reply:
                (model,) = json.loads(reply.read())["data"]
        except OSError:
            return False
        return any(drafter["state"] == "ready" for drafter in model["drafters"])


def environment() -> dict[str, str]:
    """Return this process's environment without variables that configure the product."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPECDEC_", "REDIS_URL"))}
    kept |= {name: os.environ[name] for name in (forked.SHARED,) if name in os.environ}
    return kept | {"NO_COLOR": "1", "OMP_NUM_THREADS": "1"}


def run_module(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run `python -m` to its end."""
    return subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=1100
    )


def alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition: Callable[[], bool], seconds: float = START_SECONDS) -> None:
    """Poll until `condition()` holds. Fail if it does not hold within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.05)


def killed_verifier(system: System) -> int:
    """Kill the verifier that has a generation now, and return its pid, or 0 if none reports one."""
    for entry in system.of_now():
        if entry["role"] == "verifier":
            with urllib.request.urlopen(f"http://{entry['http']}/metrics", timeout=60) as reply:
                if b"specdec_requests_running 1.0" in reply.read():
                    os.kill(entry["pid"], signal.SIGKILL)
                    return int(entry["pid"])
    return 0


@contextmanager
def running_system(folder: Path, *arguments: str, **variables: str) -> Iterator[System]:
    """Run `specdec up` with `arguments` and environment `variables` on free ports.

    Stop it as Ctrl-C does, and check that no process remains.
    """
    state, log = folder / "state.json", folder / "up.log"
    ports = [part for option in PORTS for part in (option, "127.0.0.1:0")]  # so that two systems can run at once
    with log.open("w") as output:
        process = subprocess.Popen(
            [SPECDEC, "up", *ports, "--no-sample", "--state", str(state), *arguments],
            cwd=ROOT,
            env=environment() | variables,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while not state.exists():
            assert process.poll() is None, f"`specdec up` ended:\n{log.read_text()}"
            assert time.monotonic() < deadline, f"`specdec up` is not healthy:\n{log.read_text()}"
            time.sleep(0.05)
        system = System(process, json.loads(state.read_text()), log, state)
        yield system
        pids = {*system.pids(), *(entry["pid"] for entry in system.of_now())}
        process.send_signal(signal.SIGINT)
        process.wait(timeout=START_SECONDS)
        wait_until(lambda: not any(map(alive, pids)))
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
