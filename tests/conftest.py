"""Pytest settings for all tests: property tests without deadlines, kernels without a GPU, and shared fixtures."""

import gc
import logging
import os
import shutil
from collections.abc import Generator
from pathlib import Path

import pytest
import structlog
from hypothesis import settings

pytest_plugins = ["tests.fake_kubernetes.fixtures", "tests.support.fork_servers", "tests.integration.sessions.server"]

settings.register_profile("explore", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)  # the same examples every time
settings.load_profile("ci" if os.environ.get("CI") else "explore")

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is first imported: tests run one process a core
if shutil.which("nvidia-smi") is None:
    os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton reads it when it is first imported, which transformers does

_ROOT = Path(__file__).parent
_LONGEST = tuple(
    _ROOT / "conformance" / f"test_{name}.py" for name in ("planted_bugs", "served_law", "served_late_drafts")
)
"""Test files to start first in a parallel run, so that none of them is left to run alone at the end."""
_FIRST = {"e2e": 0, "kubernetes": 1, "attacks": 2, "conformance": 3, "integration": 3}
"""Order in which folders start; those with the slowest files go first. Conformance tests compute and integration tests
also wait, so their files are mixed evenly to keep the processors busy."""

_MADE_BETWEEN_COLLECTIONS = 20_000
"""Garbage collection threshold, in objects. Python's default makes the simulations of the conformance suite slower."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exclude imported and collected objects from garbage collection, and collect seldom.

    These objects live to the end of the run, and each collection would walk through all of them. Tests make many
    objects and few cycles, so most collections find nothing.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(_MADE_BETWEEN_COLLECTIONS)
        gc.enable()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests of folders that open sockets or load models."""
    if _folder(item.path) == "integration":
        item.add_marker(pytest.mark.integration)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move the slowest files to the front and keep the order of the rest."""
    by_folder: dict[str, list[Path]] = {}
    for file in dict.fromkeys(item.path for item in items):
        by_folder.setdefault(_folder(file), []).append(file)
    places = {
        file: (_FIRST[folder], number / len(files)) if folder in _FIRST else (len(_FIRST), 0.0)
        for folder, files in by_folder.items()
        for number, file in enumerate(files)
    }
    items.sort(key=lambda item: (-1, 0.0) if item.path in _LONGEST else places[item.path])


def _folder(file: Path) -> str:
    return file.relative_to(_ROOT).parts[0]


# By default structlog renders the local variables of every frame of a logged exception, which takes seconds.
# The level is INFO because a log line for each call slows down tests that make thousands of calls.
structlog.configure(
    wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
    processors=[
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ],
)
