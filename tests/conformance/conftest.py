"""The tiny pair that laws are computed for, and the table of p-values at the end of the run."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import structlog

from tests.conformance.law import PlainModel
from tests.tiny_models import make_tiny_model

VOCAB_SIZE = 8
"""The end token, id 0, and seven more."""
SPREAD = 0.3
"""Weights that give p a mean entropy of 1.2 nats and make it differ by a total variation of 0.5 from row to row."""
TABLE = pytest.StashKey[list[str]]()


@dataclass(frozen=True)
class Pair:
    """Two model folders: Σ min(p, q) is 0.56 in the mean."""

    target: Path
    drafter: Path
    plain: PlainModel
    """The target as transformers runs it."""


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("small")
    shape: dict[str, Any] = {"vocab_size": VOCAB_SIZE, "layers": 1, "context": 64}
    target = make_tiny_model(folder / "target", seed=3, spread=SPREAD, **shape)
    drafter = make_tiny_model(folder / "drafter", seed=3, spread=SPREAD, noise=SPREAD / 4, **shape)
    return Pair(target, drafter, PlainModel(target))


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> Iterator[None]:
    """Thousands of calls: only what goes wrong is logged."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("error"))
    yield
    structlog.reset_defaults()


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Add a line to the table."""
    return request.config.stash.setdefault(TABLE, []).append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Show what the tests measured."""
    if lines := config.stash.get(TABLE, []):
        terminalreporter.section("conformance of what is served")
        for line in lines:
            terminalreporter.write_line(line)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder crosses a socket."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.integration)
