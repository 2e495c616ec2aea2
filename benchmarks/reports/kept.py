"""Results of a run, stored by key as they are measured, so that a stopped run can resume."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.machine import ROOT, commit


class Kept:
    """JSON values by key, in a file of lines."""

    def __init__(self, file: Path, *, resume: bool) -> None:
        """Open the file. Without `resume`, its content is not read."""
        self._file = file
        lines = file.read_text(encoding="utf-8").splitlines() if resume and file.exists() else []
        self._known: dict[str, Any] = dict(map(json.loads, lines))

    @classmethod
    def at_commit(cls, section: str, *, resume: bool) -> "Kept":
        """Return the results of a section at the measured commit."""
        return cls(ROOT / "build" / "benchmarks" / section / f"{commit()}.jsonl", resume=resume)

    def once(self, key: Sequence[Any], make: Callable[[], Any]) -> Any:
        """Return the value stored under the key.

        If there is none, store the result of `make`, a dataclass as its fields.
        """
        name = json.dumps(key)
        if name not in self._known:
            self._known[name] = json.loads(json.dumps(make(), default=asdict))
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps([name, self._known[name]]) + "\n")
        return self._known[name]
