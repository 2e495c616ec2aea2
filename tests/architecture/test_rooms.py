"""A folder has few modules."""

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
SERVICES = ("specdec", "drafter_service", "verifier_service", "gateway")
MOST = 16
"""Largest number of modules in a folder."""


def test_no_folder_is_crowded() -> None:
    modules = (path for name in SERVICES for path in (ROOT / name).rglob("*.py") if path.name != "__init__.py")
    folders = Counter(str(path.parent.relative_to(ROOT)) for path in modules)
    assert not {folder: count for folder, count in folders.items() if count > MOST}
