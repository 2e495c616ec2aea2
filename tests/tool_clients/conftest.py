"""A running system, for other people's clients."""

from collections.abc import Iterator

import pytest

from tests.e2e.system import System, running_system


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with running_system(tmp_path_factory.mktemp("system"), "--no-kv") as system:
        yield system
