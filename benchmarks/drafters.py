"""The drafters of the tables, by the name their setting has."""

from pathlib import Path

from drafter_service.app import load_drafter as load_served
from drafter_service.config import DrafterSettings
from drafter_service.drafters.base import Drafter


def load_drafter(kind: str, path: Path) -> Drafter:
    """A drafter as the service would load it."""
    return load_served(DrafterSettings.load(None, {"model": {"path": path}, "kind": kind}))
