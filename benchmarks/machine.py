"""What a number was measured on."""

import os
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from specdec.cli import forked

ROOT = Path(__file__).parents[1]


def machine() -> dict[str, str]:
    """Date, processor, cores, versions and commit."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "cpu": _cpu(),
        "cores": str(os.cpu_count()),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "",
        "commit": commit(),
        **{package: _version(package) for package in ("torch", "transformers", "scikit-learn")},
    }


def load() -> str:
    """The load average of the last minute."""
    return f"{os.getloadavg()[0]:.1f}"


def commit() -> str:
    """Commit of the working tree."""
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or "unknown"


def environment() -> dict[str, str]:
    """This process's environment for one that serves: on one thread, and without what would configure it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPECDEC_", "REDIS_URL"))}
    kept |= {name: os.environ[name] for name in (forked.SHARED,) if name in os.environ}
    return kept | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def resident_bytes(pid: int) -> int:
    """Resident bytes of a process, as the kernel counts them."""
    page = os.sysconf("SC_PAGE_SIZE")
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * page


def family(pid: int) -> list[int]:
    """A process with all that it started and that still run, parents before children."""
    found = [pid]
    for each in found:
        with suppress(OSError):
            for task in Path(f"/proc/{each}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text(encoding="ascii").split()]
    return found


def proportional_bytes(pid: int) -> int:
    """Resident bytes of a process, of which those that n processes share count 1/n; 0 once it has ended."""
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
