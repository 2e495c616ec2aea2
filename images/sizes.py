"""What each image may weigh: `sizes.json` holds what was measured last, and no image may grow by a tenth unseen."""

import json
from collections.abc import Mapping
from pathlib import Path

FILE = Path(__file__).with_name("sizes.json")
GROWTH = 1.1
"""How many times its stated size an image may have."""


def stated(file: Path = FILE) -> dict[str, int]:
    """Megabytes of each image, as they were measured last."""
    sizes: dict[str, int] = json.loads(file.read_text(encoding="utf-8"))
    return sizes


def state(measured: Mapping[str, int], file: Path = FILE) -> None:
    """Write what was measured over what is stated."""
    merged = stated(file) | dict(measured)
    file.write_text(json.dumps(merged, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def grown(measured: Mapping[str, int], said: Mapping[str, int]) -> list[str]:
    """A sentence for each image that is larger than it may be, or of which nothing is stated."""
    return [sentence for name, size in measured.items() if (sentence := _verdict(name, size, said.get(name)))]


def _verdict(name: str, size: int, before: int | None) -> str:
    if before is None:
        return f"{name}: {size} MB, and sizes.json states none: run `python -m images {name} --state`"
    if size > GROWTH * before:
        return f"{name}: {size} MB, {size / before - 1:.0%} more than the {before} MB of sizes.json: --state accepts it"
    return ""
