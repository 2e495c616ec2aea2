"""Messages put in during one iteration of the event loop leave as one frame, valid in order."""

import asyncio
from dataclasses import replace

import pytest

from specdec.rules.speculation import Mode
from specdec.wire.features import Features
from specdec.wire.session import Close, Commit, Open
from tests.unit.verifier_service.verifier_fakes import GREEDY
from verifier_service.drafts.client import requests_of
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


async def test_features_of_joined_commits_join(outbox: Outbox) -> None:
    first, second = Features(4, 2, b"abcd"), Features(6, 1, b"ef")
    outbox.commit(Commit("s", 1, 5, (6, 7), 3, first))
    outbox.commit(Commit("s", 1, 7, (8,), 2, second))
    outbox.commit(Commit("s", 1, 8, (9,), 2))
    assert (await outbox.take()).commits == (Commit("s", 1, 5, (6, 7, 8, 9), 2, Features(4, 3, b"abcdef")),)
    outbox.commit(Commit("s", 1, 9, (1,), 2))
    outbox.commit(Commit("s", 1, 10, (2,), 2, Features(9, 1, b"gh")))
    assert (await outbox.take()).commits[0].features == Features(9, 1, b"gh")


def test_a_request_has_room_for_so_many_features(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verifier_service.drafts.client._MOST_BYTES", 5)
    opens = tuple(
        replace(opening(name), features=Features(0, 1, bytes(size)))
        for name, size in zip("abcd", (9, 3, 2, 1), strict=True)
    )
    commits = (Commit("c", 1, 2, (6,), 3, Features(1, 1, bytes(4))), Commit("d", 1, 2, (6,), 3))
    requests = list(requests_of(Frame(opens, commits, (Close("e", 1),), 7)))
    assert [[each.session_id for each in request.opens] for request in requests] == [["a"], ["b", "c"], ["d"]]
    assert [[each.session_id for each in request.commits] for request in requests] == [[], [], ["c", "d"]]
    assert [len(request.closes) for request in requests] == [0, 0, 1]
    assert [request.ping.nonce for request in requests] == [0, 0, 7]


async def test_an_empty_box_waits(outbox: Outbox) -> None:
    outbox.ping(1)
    await outbox.take()
    taking = asyncio.create_task(outbox.take())
    await asyncio.sleep(0)
    assert not taking.done()
    outbox.ping(2)
    assert (await taking).ping == 2
