"""Work for a client ends when the client disconnects, and only then."""

import asyncio

import pytest
from starlette.types import Message

from gateway.http.replies import answers
from gateway.http.replies.answers import ConnectedClient


class Client:
    """A client that disconnects when the test says so."""

    def __init__(self) -> None:
        self.left = asyncio.Event()

    async def receive(self) -> Message:
        await self.left.wait()
        return {"type": "http.disconnect"}


async def test_the_work_of_a_client_that_left_is_cancelled() -> None:
    client = Client()
    asyncio.get_running_loop().call_soon(client.left.set)
    with ConnectedClient(client.receive):
        await asyncio.Event().wait()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)  # nothing cancels what comes after


async def test_a_lost_cancellation_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "CANCEL_AGAIN", 0.001)
    client, lost = Client(), 0
    client.left.set()
    with ConnectedClient(client.receive):
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                lost += 1
                if lost == 3:
                    raise
    assert lost == 3


async def test_a_cancellation_from_elsewhere_is_passed_on() -> None:
    client = Client()

    async def work() -> None:
        with ConnectedClient(client.receive):
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_failure_of_the_work_is_raised() -> None:
    with pytest.raises(ValueError, match="broken"), ConnectedClient(Client().receive):
        raise ValueError("broken")
