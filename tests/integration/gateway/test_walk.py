"""How far a request walks: the files that a streamed request enters in the gateway."""

import pytest

from gateway import app
from tests.integration.gateway.stage import Stage, stage
from tests.support.walk import walked

MOST = 40
"""Files of `gateway/` that a request enters; less is better."""


async def streamed(here: Stage) -> int:
    """The chunks of a streamed answer."""
    answer = await here.client.completions.create(model="bytes", prompt="Say it", stream=True)
    return len([chunk async for chunk in answer])


async def test_a_streamed_request_enters_few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "READY_POLL", 3600.0)  # readiness is no part of a request
    walks = []
    with walked() as walk:
        async with stage() as here:
            await streamed(here)  # which makes what is made once
            for _ in range(3):
                walk.restart()
                assert await streamed(here) > 1
                walks.append(walk.of("gateway"))
    entered = min(walks, key=len)  # background work, such as returned memory, falls into some of them
    assert len(entered) > 20  # it was seen
    assert len(entered) <= MOST, entered
