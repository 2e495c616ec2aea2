"""The state file: what runs, for other programs; it is there from the first healthy moment to the end."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Entry:
    """One process."""

    role: str
    pid: int
    http: str | None
    """`host:port`, or None."""
    grpc: str | None


def write(path: Path, entries: Sequence[Entry]) -> None:
    """Write all of it at once: a reader sees the whole list or no file.

    Raises:
        OSError: the folder is not there or cannot be written.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(json.dumps([asdict(entry) for entry in entries], indent=2) + "\n", encoding="utf-8")
    beside.replace(path)


def remove(path: Path) -> None:
    """Take the file away; nothing when there is none."""
    path.unlink(missing_ok=True)
