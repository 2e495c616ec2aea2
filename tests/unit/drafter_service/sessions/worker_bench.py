"""A drafter's worker over a model without a network, with one stream."""

from dataclasses import replace
from pathlib import Path

from prometheus_client import CollectorRegistry

from drafter_service.config import DrafterSettings
from drafter_service.drafters.model_drafter import ModelDrafter
from drafter_service.metrics import DrafterMetrics
from drafter_service.sessions.drafter import Drafter
from drafter_service.sessions.worker import Worker
from specdec.serving.settings import ModelSettings
from tests.support.drafter_fakes import OPEN, ListStream, PrefixModel, expected_drafts

SETTINGS = DrafterSettings(model=ModelSettings(path=Path("tiny")), max_sessions=8, chunk_tokens=16, ahead=0)


class Bench:
    """A worker over a PrefixModel, with one stream."""

    def __init__(self, settings: DrafterSettings = SETTINGS) -> None:
        self.model = PrefixModel()
        self.registry = CollectorRegistry()
        self.worker = Worker(self._load, settings, DrafterMetrics(self.registry))
        self.stream = ListStream()

    def start(self) -> None:
        self.worker.start()
        self.worker.loaded.result(timeout=30)
        self.model.passes.clear()

    def close(self) -> None:
        self.worker.stop()
        self.worker.ended.result(timeout=30)

    def count(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)

    def _load(self) -> Drafter:
        return ModelDrafter("tiny", self.model, support=8)


def drafted(*, gamma: int = 3, **changes: object) -> list[int]:
    """Return the tokens that the worker must draft for OPEN with these changes."""
    opened = replace(OPEN, **changes)  # type: ignore[arg-type]
    return [token for token, _ in expected_drafts(opened, gamma, support=8)]
