"""Closes the pass loops that tests of turns leave open."""

from collections.abc import AsyncIterator

import pytest

from tests.unit.gateway.turns.in_memory import LOOPS


@pytest.fixture(autouse=True)
async def _closed_loops() -> AsyncIterator[None]:
    yield
    while LOOPS:
        await LOOPS.pop().close()
