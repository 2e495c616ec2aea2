"""Limits of the wait for the session store."""

import asyncio

import pytest

from gateway import tasks
from gateway.tasks import retry
from specdec.errors import Fenced, SessionStoreDown


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "PAUSE", 0.001)
    monkeypatch.setattr(tasks, "ONE_TRY", 0.02)


class Store:
    """A store that fails the first tries, and then never answers if it is `frozen`."""

    def __init__(self, failures: int, frozen: bool = False) -> None:
        self.failures = failures
        self.frozen = frozen
        self.tries = 0
        self.cancelled = 0

    async def step(self) -> str:
        self.tries += 1
        if self.tries <= self.failures:
            raise SessionStoreDown("away")
        if self.frozen:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        return "answer"


async def test_it_is_tried_until_the_store_answers() -> None:
    store = Store(failures=3)
    assert await retry(store.step, 60) == "answer"
    assert store.tries == 4


async def test_without_time_it_is_tried_once() -> None:
    store = Store(failures=9)
    with pytest.raises(SessionStoreDown, match="away"):
        await retry(store.step, 0)
    assert store.tries == 1


@pytest.mark.parametrize(("failures", "seconds"), [(0, 0.0), (1, 2.0)])
async def test_a_try_that_gets_no_answer_ends_with_the_time_for_all(failures: int, seconds: float) -> None:
    store = Store(failures, frozen=True)
    async with asyncio.timeout(20):
        with pytest.raises(SessionStoreDown, match="did not answer within"):
            await retry(store.step, seconds)
    assert (store.tries, store.cancelled) == (failures + 1, 1)


async def test_what_another_try_would_not_change_is_raised() -> None:
    async def fenced() -> None:
        raise Fenced("epoch 1 is over")

    with pytest.raises(Fenced):
        await retry(fenced, 60)


@pytest.mark.parametrize("frozen", [False, True])
async def test_work_that_can_be_refused_is_tried_once(frozen: bool) -> None:
    store = Store(failures=0 if frozen else 9, frozen=frozen)
    with pytest.raises(SessionStoreDown, match="did not answer" if frozen else "away"):
        await retry(store.step, 0.1, once=True)
    assert store.tries == 1
