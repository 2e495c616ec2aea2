"""The resident memory of processes over time, and whether it stays constant."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import linear_regression

MIB = 2**20
_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident(pid: int) -> int:
    """Return the resident memory of a process, in bytes.

    Raises:
        OSError: there is no such process.
    """
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory samples of one process."""

    name: str
    pid: int
    samples: list[tuple[float, int]] = field(default_factory=list)
    """Seconds since the load began, and bytes."""

    def sample(self, seconds: float) -> None:
        """Record the current memory of the process. Raises OSError if it no longer exists."""
        self.samples.append((seconds, resident(self.pid)))

    def slope(self, warm: float) -> float:
        """Growth in MiB a minute by least squares, over the samples from `warm` seconds on. Needs at least two."""
        seconds, sizes = zip(*((at, size) for at, size in self.samples if at >= warm), strict=True)
        return linear_regression(seconds, sizes).slope * 60 / MIB

    def as_json(self, warm: float) -> dict[str, object]:
        """Return the samples for the report, in MiB and seconds."""
        return {
            "name": self.name,
            "slope_mib_per_minute": round(self.slope(warm), 3),
            "samples": [(round(at, 1), round(size / MIB, 1)) for at, size in self.samples],
        }


def grown(memories: Sequence[Memory], warm: float, bound: float) -> list[str]:
    """Return the processes that grow by more than `bound` MiB a minute after `warm` seconds."""
    return [
        f"{memory.name} grows by {memory.slope(warm):.2f} MiB a minute, {bound:g} are allowed"
        for memory in memories
        if memory.slope(warm) > bound
    ]
