"""Podman with runc, configured for machines without systemd or a registry, and for use inside containers."""

import os
import resource
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TOOLS = ("podman", "runc", "debootstrap")
INSTALL = "apt-get install --no-install-recommends podman runc debootstrap netavark aardvark-dns iptables"


def lacking() -> str:
    """Return why no image can be built here, or "" if it can."""
    if os.geteuid() != 0:
        return "images are built by root: debootstrap and the mounts of a build need it"
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"there is no {', no '.join(missing)} here: {INSTALL}"
    return ""


@dataclass(frozen=True)
class Podman:
    """Podman, with its own configuration in a scratch folder."""

    scratch: Path

    def environment(self) -> dict[str, str]:
        """Environment of every call. The configuration file is written if it does not exist."""
        file = self.scratch / "containers.conf"
        if not file.exists():
            self.scratch.mkdir(parents=True, exist_ok=True)
            file.write_text(configuration(), encoding="utf-8")
        # Health checks run on request, not by timers of systemd.
        return dict(os.environ) | {"CONTAINERS_CONF": str(file), "DISABLE_HC_SYSTEMD": "true"}

    def ask(self, *arguments: str) -> str:
        """Return the output of podman.

        Raises:
            subprocess.CalledProcessError: the command failed, with the reason in `stderr`.
        """
        command = ("podman", *arguments)
        done = subprocess.run(command, env=self.environment(), check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def run(self, command: Sequence[str]) -> int:
        """Run a command with visible output, and return its exit status."""
        return subprocess.run(command, env=self.environment(), check=False).returncode

    def has(self, image: str) -> bool:
        """Whether an image is in the local store."""
        return self.run(("podman", "image", "exists", image)) == 0

    def megabytes(self, image: str) -> int:
        """Return the size of an image, with all its layers."""
        return round(int(self.ask("image", "inspect", "--format", "{{.Size}}", image)) / 1e6)


def configuration() -> str:
    """Return containers.conf: runc, which supports every kind of cgroup, and limits within this process's own."""
    files, processes = (resource.getrlimit(limit)[1] for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC))
    limits = {"nofile": _within(files, 20000), "nproc": _within(processes, 4096)}
    listed = ", ".join(f'"{name}={limit}:{limit}"' for name, limit in limits.items())
    return (
        '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n[containers]\n'
        f"default_ulimits = [{listed}]\n"
    )


def _within(limit: int, most: int) -> int:
    return most if limit < 0 else min(limit, most)  # unlimited is -1
