"""Fixtures for tests of the drafter's worker."""

from collections.abc import Iterator

import pytest

from tests.unit.drafter_service.sessions.worker_bench import Bench


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    bench.start()
    yield bench
    bench.close()
