"""Fixtures for tests of the KV pool."""

import pytest

from tests.unit.specdec.engine.kv_pools import STORES, Pool, make


@pytest.fixture(params=STORES)
def memory(request: pytest.FixtureRequest) -> str:
    """Kind of store."""
    kind: str = request.param
    return kind


@pytest.fixture
def pool(memory: str) -> Pool:
    """Return a function that makes a pool of that many pages."""
    return lambda pages: make(memory, pages)
