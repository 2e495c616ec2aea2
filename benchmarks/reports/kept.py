"""Results of a run by what they are of, kept while it goes on, so that one that was stopped can go on with the rest."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.machine import ROOT, commit


class Kept:
    """Values of JSON by key, in a file of lines."""

    def __init__(self, file: Path, *, resume: bool) -> None:
        """Without `resume`, what the file has is not read."""
        self._file = file
        lines = file.read_text(encoding="utf-8").splitlines() if resume and file.exists() else []
        self._known: dict[str, Any] = dict(map(json.loads, lines))

    @classmethod
    def at_commit(cls, section: str, *, resume: bool) -> "Kept":
        """The results of a section at the commit that is measured."""
        return cls(ROOT / "build" / "benchmarks" / section / f"{commit()}.jsonl", resume=resume)

    def once(self, key: Sequence[Any], make: Callable[[], Any]) -> Any:
        """Value kept under the key; where there is none, that of `make` is kept, a dataclass as its fields."""
        name = json.dumps(key)
        if name not in self._known:
            self._known[name] = json.loads(json.dumps(make(), default=asdict))
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps([name, self._known[name]]) + "\n")
        return self._known[name]
