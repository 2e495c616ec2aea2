"""The loop checks a waiting sequence when its drafts change and when its wait ends."""

import asyncio
import math
from collections.abc import Callable

import uvloop

from tests.support.gateway_fakes import until
from verifier_service.backends.batch_plan import Gathers
from verifier_service.drafts.drafts import Drafts, Proposal
from verifier_service.passes.draft_waits import DraftWaits


class Coming(Drafts):
    """A draft that arrives when a test says so."""

    def __init__(self, gathers: Gathers = Gathers.ALWAYS, seconds: float = math.inf) -> None:
        self.there = self.broken = False
        self.looks = 0
        self._gathers = gathers
        self._until = asyncio.get_running_loop().time() + seconds
        self.changed: Callable[[], object] = lambda: None

    @property
    def gathers(self) -> Gathers:
        return self._gathers

    @property
    def patience(self) -> float:
        return max(self._until - asyncio.get_running_loop().time(), 0.0)

    def request(self, gamma: int, changed: Callable[[], object]) -> None:
        self.changed = changed

    def proposal(self) -> Proposal | None:
        self.looks += 1
        if self.broken:
            raise RuntimeError("a bug")
        return Proposal(waited=1.0) if self.there or not self.patience else None

    def stop_waiting(self) -> None:
        self.there = True

    def come(self) -> None:
        self.there = True
        self.changed()


class Waiting:
    """A waiting sequence."""

    def __init__(self, drafts: Coming) -> None:
        self.drafts: Drafts = drafts
        self.got: list[Proposal] = []
        self.failed: list[Exception] = []

    def drafted(self, proposal: Proposal) -> None:
        self.got.append(proposal)

    def guarded(self, step: Callable[..., None], *arguments: object) -> None:
        try:
            step(*arguments)
        except Exception as error:  # noqa: BLE001 - as a sequence does it
            self.failed.append(error)


class Waits:
    """The waits, and a count of their change notifications."""

    def __init__(self) -> None:
        self.changes = 0
        self.waits = DraftWaits(self._changed)

    def _changed(self) -> None:
        self.changes += 1

    def begin(self, drafts: Coming) -> Waiting:
        sequence = Waiting(drafts)
        self.waits.begin(sequence, 2)
        return sequence


async def test_a_draft_that_is_there_is_not_waited_for() -> None:
    made, drafts = Waits(), Coming()
    drafts.there = True
    assert len(made.begin(drafts).got) == 1
    assert made.waits[Gathers.ALWAYS] == 0


async def test_drafts_that_change_in_one_turn_are_looked_at_once() -> None:
    made, first, second = Waits(), Coming(), Coming(Gathers.BRIEFLY)
    one, two = made.begin(first), made.begin(second)
    assert (made.waits[Gathers.ALWAYS], made.waits[Gathers.BRIEFLY]) == (1, 1)
    first.changed()
    first.changed()
    first.come()
    second.changed()
    assert not one.got
    await asyncio.sleep(0)
    assert (len(one.got), len(two.got)) == (1, 0)
    assert (first.looks, second.looks) == (2, 2), "once at the request, once for all changes"
    assert made.changes == 1
    assert made.waits.waited() > 0.0
    assert made.waits.waited() == 0.0


async def test_a_wait_ends_when_its_time_is_over_whichever_comes_first() -> None:
    made = Waits()
    late, soon, never = made.begin(Coming(seconds=0.03)), made.begin(Coming(seconds=0.01)), made.begin(Coming())
    await until(lambda: soon.got)
    await until(lambda: late.got)
    assert not never.got
    assert made.waits[Gathers.ALWAYS] == 1


def test_a_wait_shorter_than_uvloop_s_clock_does_not_break_the_next_one() -> None:
    """For such a delay uvloop returns a handle without a time."""

    async def begin_two() -> tuple[Waiting, Waiting]:
        made = Waits()
        short, next_one = made.begin(Coming(seconds=0.0002)), made.begin(Coming(seconds=0.01))
        await until(lambda: short.got and next_one.got)
        return short, next_one

    assert [len(each.got) for each in uvloop.run(begin_two())] == [1, 1]


async def test_only_waits_for_which_no_pass_waits_are_hurried() -> None:
    made = Waits()
    patient, hasty = made.begin(Coming()), made.begin(Coming(Gathers.NOT))
    assert made.changes == 1, "the pass that would wait for it may begin"
    made.waits.stop_waiting()
    assert (len(patient.got), len(hasty.got)) == (0, 1)
    assert made.waits.waited() == 0.0


async def test_who_has_left_gets_no_draft() -> None:
    made, drafts = Waits(), Coming(seconds=0.005)
    sequence = made.begin(drafts)
    drafts.come()
    made.waits.drop(sequence)
    made.waits.drop(sequence)
    drafts.come()
    await asyncio.sleep(0.02)
    assert not sequence.got
    assert made.waits[Gathers.ALWAYS] == 0


async def test_a_bug_of_one_source_of_drafts_ends_one_sequence() -> None:
    made, broken, sound = Waits(), Coming(), Coming()
    one, two = made.begin(broken), made.begin(sound)
    broken.broken = True
    broken.changed()
    sound.come()
    await asyncio.sleep(0)
    assert [str(error) for error in one.failed] == ["a bug"]
    assert len(two.got) == 1
