"""Measurements that survive a kill: one JSON file, one entry a cell, written as each is done."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

Value = TypeVar("Value")


class Cells:
    """What has been measured under one configuration; another configuration begins anew."""

    def __init__(self, path: Path, configuration: dict[str, Any]) -> None:
        self._path = path
        self._cells: dict[str, Any] = {"configuration": configuration}
        if path.exists():
            known = json.loads(path.read_text(encoding="utf-8"))
            if known["configuration"] == configuration:
                self._cells = known

    def get(self, name: str, make: Callable[..., Value], measure: Callable[[], list[Value]]) -> list[Value]:
        """The values of a cell, measured if they are not there yet; `make` builds one from its fields."""
        if name not in self._cells:
            self._cells[name] = [asdict(value) for value in measure()]  # type: ignore[call-overload]
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text(json.dumps(self._cells, indent=1), encoding="utf-8")
        return [make(**fields) for fields in self._cells[name]]
