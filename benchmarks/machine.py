"""The machine of a benchmark, and its processes."""

import os
import subprocess
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from specdec.cli.local import forked

ROOT = Path(__file__).parents[1]
OTHERS = "others"
"""Role of processes without one."""


def machine() -> dict[str, str]:
    """Return date, processor, cores, versions and commit."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "cpu": _cpu(),
        "cores": str(os.cpu_count()),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "",
        "commit": commit(),
        **{package: _version(package) for package in ("torch", "transformers", "scikit-learn")},
    }


def load() -> str:
    """Return the load average of the last minute."""
    return f"{os.getloadavg()[0]:.1f}"


def commit() -> str:
    """Return the commit of the working tree, or BENCH_COMMIT if the tree has no history."""
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or os.environ.get("BENCH_COMMIT", "unknown")


def environment() -> dict[str, str]:
    """Return the environment for a serving process: one thread, and no variables that configure it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPECDEC_", "REDIS_URL"))}
    kept |= {name: os.environ[name] for name in (forked.SHARED,) if name in os.environ}
    return kept | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def resident_bytes(pid: int) -> int:
    """Return the resident bytes of a process, as the kernel counts them."""
    page = os.sysconf("SC_PAGE_SIZE")
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * page


def children(pid: int) -> list[int]:
    """Return the running children of a process."""
    found = list[int]()
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text(encoding="ascii").split()]
    return found


def family(pid: int) -> list[int]:
    """Return a process with all its running descendants, parents before children."""
    found = [pid]
    for each in found:
        found += children(each)
    return found


def spent(pid: int, roles: Mapping[int, str]) -> dict[str, float]:
    """Return the seconds of processor time of a process and its descendants, by role.

    Args:
        pid: the first process. Its role is OTHERS if `roles` has none.
        roles: roles by pid. A process without a role has that of its parent.
    """
    seconds, waiting = defaultdict[str, float](float), [(pid, OTHERS)]
    for each, inherited in waiting:
        role = roles.get(each, inherited)
        seconds[role] += cpu_seconds(each)
        waiting += [(child, role) for child in children(each)]
    return dict(seconds)


def cpu_seconds(pid: int) -> float:
    """Return the processor time used by a process without its children, in seconds, or 0 after its end."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def proportional_bytes(pid: int) -> int:
    """Return the resident bytes of a process, or 0 after its end. Bytes shared by n processes count 1/n."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
        return next((1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
    return 0


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"
