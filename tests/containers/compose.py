"""compose.yaml, started by podman-compose under a project name of its own for each test."""

import json
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2 as httpx

from images.__main__ import ROOT
from images.engine import Podman

COMMAND = ROOT / "build" / "podman-compose" / "bin" / "podman-compose"
GATEWAY = "http://127.0.0.1:8000"
SERVICES = ("valkey", "valkey-kv", "drafter", "verifier", "gateway")


@dataclass(frozen=True)
class Compose:
    """The containers of compose.yaml, and requests to their gateway."""

    podman: Podman
    project: str

    def __call__(self, *arguments: str) -> None:
        """Run podman-compose.

        Raises:
            subprocess.CalledProcessError: it failed.
        """
        command = (str(COMMAND), "--in-pod", "false", "--project-name", self.project, *arguments)
        subprocess.run(command, cwd=ROOT, env=self.podman.environment(), check=True, capture_output=True, text=True)

    def container(self, service: str) -> str:
        """Return the name of a service's container."""
        return f"{self.project}_{service}_1"

    def inspected(self, service: str) -> dict[str, Any]:
        """Return podman's description of a container."""
        found: list[dict[str, Any]] = json.loads(self.podman.ask("container", "inspect", self.container(service)))
        return found[0]

    def pid(self, service: str) -> int:
        """Return the pid of a container's main process; 0 if it does not run."""
        return int(self.inspected(service)["State"]["Pid"])

    def kill(self, service: str) -> int:
        """Kill a container's process, like a crash, and return its pid."""
        pid = self.pid(service)
        os.kill(pid, signal.SIGKILL)
        return pid

    def status(self, service: str) -> str:
        """Return the capabilities and the user of the first process, from /proc."""
        return Path(f"/proc/{self.pid(service)}/status").read_text()

    def is_healthy(self, service: str) -> bool:
        """Whether the healthcheck of compose.yaml passes now."""
        return self.podman.run(("podman", "healthcheck", "run", self.container(service))) == 0

    def logs(self) -> str:
        """Return the last log lines of every service, for the message of a failed test."""
        ask = ("podman", "logs", "--tail", "20")
        environment = self.podman.environment()
        return "\n".join(
            subprocess.run((*ask, self.container(service)), env=environment, capture_output=True, text=True).stderr
            for service in SERVICES
        )


def complete(**fields: object) -> dict[str, Any] | None:
    """Return the gateway's answer, or None while it refuses or is unreachable."""
    body = {"model": "demo", "prompt": "def main(", "max_tokens": 24, "temperature": 0, "return_token_ids": True}
    try:
        answer = httpx.post(f"{GATEWAY}/v1/completions", json=body | fields, timeout=60)
    except httpx.TransportError:
        return None
    found: dict[str, Any] = answer.json()
    return found if answer.status_code == 200 else None


def drafted(answer: dict[str, Any] | None) -> int:
    """Return the number of tokens drafted for an answer."""
    metrics = (answer or {}).get("metrics") or {}
    return int(metrics.get("speculative_decoding", {}).get("num_draft_tokens", 0))
