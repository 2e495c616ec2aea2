"""Measurements that survive a kill: one JSON file with one entry per cell, written as soon as a cell is done."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

Value = TypeVar("Value")


class Cells:
    """Results measured under one configuration. Another configuration starts empty."""

    def __init__(self, path: Path, configuration: dict[str, Any]) -> None:
        self._path = path
        self._cells: dict[str, Any] = {"configuration": configuration}
        if path.exists():
            known = json.loads(path.read_text(encoding="utf-8"))
            if known["configuration"] == configuration:
                self._cells = known

    def __contains__(self, name: str) -> bool:
        return name in self._cells

    def put(self, name: str, values: Sequence[Any]) -> None:
        """Store the dataclasses of a cell so that they survive a kill."""
        self._cells[name] = [asdict(value) for value in values]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self._cells, indent=1), encoding="utf-8")

    def get(self, name: str, make: Callable[..., Value]) -> list[Value]:
        """Return the values of a cell. `make` builds one from its fields."""
        return [make(**fields) for fields in self._cells[name]]
