"""One running system for the tests that do not disturb it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.system import NO_DRAFT_IS_LATE, System, running_system


@pytest.fixture(scope="session", autouse=True)
def shared_imports(fork_servers: None) -> None:
    """Fork every system of this folder from the same processes."""


@pytest.fixture(scope="session")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """Run one system on the demo pair, shared by the tests that do not disturb it."""
    with running_system(tmp_path_factory.mktemp("system"), **NO_DRAFT_IS_LATE) as running:
        yield running


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder as e2e, with a long timeout because they start processes."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(900))
