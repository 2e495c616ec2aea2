"""A session whose next round begins before it asks for it, and one that asks before it tells of the last one."""

import asyncio
from contextlib import aclosing

import pytest

from specdec.rules.draft import NO_DRAFT
from specdec.rules.params import Mode, Speculation
from specdec.wire.generation import Fallback, GenerationCall, Round
from tests.unit.verifier_service.verifier_fakes import (
    DirectTarget,
    FixedGamma,
    WrittenDrafts,
    continuation,
    make_call,
    point_mass,
)
from verifier_service.batching.batch_plan import Row
from verifier_service.batching.run_ahead import Result
from verifier_service.drafters.drafts import Proposal
from verifier_service.generation.session import Session

TRUTH = continuation(3, 8)


class AheadOnce(DirectTarget):
    """Begins the fourth round before it is asked for."""

    def verify(self, row: Row) -> Result:
        self.ahead = len(self.rows) == 2
        return super().verify(row)


def make_session(call: GenerationCall, target: DirectTarget, drafts: WrittenDrafts, gamma: FixedGamma) -> Session:
    admission = Row(call, "s#1", 0.0, 11, call.tokens, goal=0)
    return Session(admission, 512, target, drafts, gamma, lambda _, __: None)  # type: ignore[arg-type]


async def test_a_gamma_that_is_chosen_behind_the_begin_of_a_round_is_for_the_next() -> None:
    target, gamma = AheadOnce(), FixedGamma(0)
    drafts = WrittenDrafts(point_mass(*TRUTH[4:6]))
    rounds: list[Round] = []
    async for done in make_session(make_call(), target, drafts, gamma).run():
        rounds.append(done)
        gamma.value = 2 * (len(rounds) > 1)
    assert tuple(token for done in rounds for token in done.tokens) == TRUTH
    assert [row.runs_ahead for row in target.rows[:5]] == [False, False, True, False, False]
    assert [len(done.draft) for done in rounds[:5]] == [0, 0, 0, 0, 2]
    assert rounds[3].fallback == Fallback.NOT_WORTH_IT
    assert drafts.asked[0] == 2


@pytest.mark.parametrize(
    ("speculation", "gamma", "expected"),
    [
        (Speculation(Mode.REJECTION), 0, [False, False, True, True]),
        (Speculation(Mode.REJECTION), 3, [False] * 4),
        (Speculation(Mode.REJECTION, detail=True), 0, [False] * 4),
    ],
)
async def test_only_plain_rounds_of_which_nothing_more_is_told_may_be_followed(
    speculation: Speculation, gamma: int, expected: list[bool]
) -> None:
    target = DirectTarget()
    session = make_session(make_call(speculation=speculation), target, WrittenDrafts(), FixedGamma(gamma))
    assert [done async for done in session.run()]
    assert [row.runs_ahead for row in target.rows[:4]] == expected


async def test_a_round_whose_source_may_guess_is_always_asked_for() -> None:
    target, drafts = DirectTarget(), WrittenDrafts()
    drafts.guesses = True
    assert [done async for done in make_session(make_call(), target, drafts, FixedGamma(0)).run()]
    assert not any(row.runs_ahead for row in target.rows)


class Guessing(WrittenDrafts):
    """A source of the verifier, which has the next two tokens from the fourth round on."""

    def guess(self) -> Proposal:
        self.asked.append(0)
        rounds = len(self.asked)
        self.guesses = rounds >= 4
        return Proposal(point_mass(*TRUTH[rounds - 1 : rounds + 1]) if self.guesses else NO_DRAFT, local=True)


async def test_a_guess_behind_the_begin_of_a_round_ends_that_they_begin_by_themselves() -> None:
    target, drafts = AheadOnce(), Guessing()
    rounds = [done async for done in make_session(make_call(), target, drafts, FixedGamma(0)).run()]
    assert tuple(token for done in rounds for token in done.tokens) == TRUTH
    assert [row.runs_ahead for row in target.rows[:5]] == [False, False, True, False, False]
    assert [len(done.draft) for done in rounds[:5]] == [0, 0, 0, 0, 2]
    assert rounds[3].fallback == Fallback.NOT_WORTH_IT


@pytest.mark.parametrize(("ahead", "prefills"), [(True, []), (False, [2])])
async def test_a_first_round_that_has_begun_reads_the_whole_prompt(ahead: bool, prefills: list[int]) -> None:
    target, call = DirectTarget(), make_call()
    target.ahead = ahead
    admission = Row(call, "s#1", 0.0, 11, call.tokens, goal=0, runs_ahead=True)
    session = Session(admission, 2, target, WrittenDrafts(), FixedGamma(0), lambda _, __: None)  # type: ignore[arg-type]
    assert [done async for done in session.run()]
    assert target.prefills == prefills
    assert all(row.runs_ahead for row in target.rows)


class Held(DirectTarget):
    """Judges the first row only."""

    def __init__(self) -> None:
        super().__init__()
        self.results: list[Result] = []

    def verify(self, row: Row) -> Result:
        self.results.append(super().verify(row) if not self.rows else asyncio.get_running_loop().create_future())
        return self.results[-1]


class Guesses(WrittenDrafts):
    """A source of the verifier that always has the next token; the drafter beside it never answers."""

    def guess(self) -> Proposal:
        return Proposal(point_mass(TRUTH[0]), local=True)


@pytest.mark.parametrize(
    ("drafts", "gamma", "asked"), [(Guesses, 0, 2), (Guesses, 2, 2), (WrittenDrafts, 0, 2), (WrittenDrafts, 2, 1)]
)
async def test_a_round_whose_draft_is_known_is_asked_for_before_the_last_one_is_told(
    drafts: type[WrittenDrafts], gamma: int, asked: int
) -> None:
    target = Held()
    session = make_session(make_call(), target, drafts(), FixedGamma(gamma))
    async with aclosing(session.run()) as rounds:
        await anext(rounds)
        assert len(target.results) == asked
    assert all(result.done() for result in target.results), "what a session that ended has asked for is taken back"


async def test_the_sessions_of_a_pass_ask_for_the_next_before_any_of_them_tells() -> None:
    target, told = DirectTarget(), list[int]()
    admission = Row(make_call(), "s#1", 0.0, 11, (1, 2, 3), goal=0)

    async def first_round() -> None:
        count = lambda *_: told.append(len(target.rows))  # noqa: E731 - how many rows there are when a round is told
        session = Session(admission, 512, target, WrittenDrafts(), FixedGamma(0), count)  # type: ignore[arg-type]
        async with aclosing(session.run()) as rounds:
            await anext(rounds)

    await asyncio.gather(*(first_round() for _ in range(3)))
    assert told == [6, 6, 6]
