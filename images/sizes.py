"""Size limits of the images.

`sizes.json` holds the last measured sizes, and an image may not grow by more than a tenth.
"""

import json
from collections.abc import Mapping
from pathlib import Path

FILE = Path(__file__).with_name("sizes.json")
GROWTH = 1.1
"""Largest ratio of an image's size to its stated size."""


def stated(file: Path = FILE) -> dict[str, int]:
    """Return the last measured megabytes of each image."""
    sizes: dict[str, int] = json.loads(file.read_text(encoding="utf-8"))
    return sizes


def state(measured: Mapping[str, int], file: Path = FILE) -> None:
    """Replace the stated sizes by the measured ones."""
    merged = stated(file) | dict(measured)
    file.write_text(json.dumps(merged, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def grown(measured: Mapping[str, int], said: Mapping[str, int]) -> list[str]:
    """Return a sentence for each image that is too large or has no stated size."""
    return [sentence for name, size in measured.items() if (sentence := _verdict(name, size, said.get(name)))]


def _verdict(name: str, size: int, before: int | None) -> str:
    if before is None:
        return f"{name}: {size} MB, and sizes.json states none: run `python -m images {name} --state`"
    if size > GROWTH * before:
        return f"{name}: {size} MB, {size / before - 1:.0%} more than the {before} MB of sizes.json: --state accepts it"
    return ""
