"""A verifier on a tiny target, with drafters that a test scripts."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from tests.integration.verifier.house import House
from tests.integration.verifier.target import Target, load_target
from tests.support.addresses import free_addresses
from tests.support.tiny_models import make_tiny_model


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return load_target(make_tiny_model(tmp_path_factory.mktemp("target"), "llama", seed=3))


@pytest.fixture(scope="session")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Target:
    """A target with heads so wide that a page has 16 tokens, and a long context."""
    folder = tmp_path_factory.mktemp("wide")
    return load_target(make_tiny_model(folder, "llama", seed=3, head_dim=64, context=9000))


@pytest.fixture
async def house(target: Target) -> AsyncIterator[House]:
    async with AsyncExitStack() as stack:
        yield House(target, stack)


@pytest.fixture
def http() -> str:
    """Address for the verifier's metrics."""
    (address,) = free_addresses(1)
    return address
