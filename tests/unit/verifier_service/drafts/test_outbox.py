"""Messages put in during one iteration of the event loop leave as one frame, valid in order."""

import asyncio

import pytest

from specdec.rules.speculation import Mode
from specdec.wire.session import Close, Commit, Open
from tests.unit.verifier_service.verifier_fakes import GREEDY
from verifier_service.drafts.link import Frame, Outbox


def opening(session: str = "s") -> Open:
    return Open(session, 1, (1, 2), 2, GREEDY, Mode.REJECTION, 4, 10)


@pytest.fixture
def outbox() -> Outbox:
    return Outbox()


async def test_messages_of_many_sessions_leave_in_one_frame(outbox: Outbox) -> None:
    outbox.open(opening("a"))
    outbox.commit(Commit("b", 1, 5, (6,), 3))
    outbox.close(Close("c", 1))
    outbox.ping(7)
    frame = await outbox.take()
    assert frame == Frame((opening("a"),), (Commit("b", 1, 5, (6,), 3),), (Close("c", 1),), 7)


async def test_commits_of_one_session_join(outbox: Outbox) -> None:
    outbox.commit(Commit("s", 1, 5, (6, 7), 3))
    outbox.commit(Commit("s", 1, 7, (8,), 2))
    assert (await outbox.take()).commits == (Commit("s", 1, 5, (6, 7, 8), 2),)


async def test_an_open_supersedes_what_waits_for_its_session(outbox: Outbox) -> None:
    outbox.commit(Commit("s", 1, 5, (6,), 3))
    outbox.close(Close("s", 1))
    outbox.open(opening())
    assert await outbox.take() == Frame(opens=(opening(),))


async def test_a_close_makes_what_waits_for_its_session_pointless(outbox: Outbox) -> None:
    outbox.open(opening())
    outbox.commit(Commit("s", 1, 5, (6,), 3))
    outbox.close(Close("s", 1))
    assert await outbox.take() == Frame(closes=(Close("s", 1),))


async def test_an_empty_box_waits(outbox: Outbox) -> None:
    outbox.ping(1)
    await outbox.take()
    taking = asyncio.create_task(outbox.take())
    await asyncio.sleep(0)
    assert not taking.done()
    outbox.ping(2)
    assert (await taking).ping == 2
