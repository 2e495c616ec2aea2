"""What tests of the KV pool share."""

import pytest

from tests.unit.specdec.engine.kv_pools import STORES, Pool, make


@pytest.fixture(params=STORES)
def memory(request: pytest.FixtureRequest) -> str:
    """The kind of store."""
    kind: str = request.param
    return kind


@pytest.fixture
def pool(memory: str) -> Pool:
    """Makes a pool of so many pages."""
    return lambda pages: make(memory, pages)
