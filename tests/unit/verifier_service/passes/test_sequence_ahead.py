"""A sequence whose next round begins before its request, and one that requests a round before it reports the last."""

from collections.abc import Callable
from typing import Any

import pytest

from specdec.rules.draft import NO_DRAFT
from specdec.rules.speculation import Mode, Speculation
from specdec.wire.generation import Fallback, GenerationCall, Round
from tests.unit.verifier_service.verifier_fakes import (
    Collected,
    DirectTarget,
    FixedGamma,
    WrittenDrafts,
    continuation,
    make_call,
    point_mass,
)
from verifier_service.backends.batch_plan import Row
from verifier_service.drafts.drafts import Proposal
from verifier_service.passes.sequence import Sequence

TRUTH = continuation(3, 8)


class AheadOnce(DirectTarget):
    """Begins the fourth round before the sequence requests it."""

    def submit(self, sequence: Sequence, row: Row) -> None:
        self.ahead = len(self.rows) == 2
        super().submit(sequence, row)


def rounds_of(
    call: GenerationCall,
    target: DirectTarget,
    drafts: WrittenDrafts,
    gamma: FixedGamma,
    seen: Callable[[Round], None] = lambda done: None,
) -> list[Round]:
    admission, reader = Row(call, "s#1", 0.0, 11, call.tokens, goal=0), Collected(seen)
    target.enter(Sequence(admission, 512, target, drafts, gamma, lambda _, __: None, reader))  # type: ignore[arg-type]
    while target.advance():
        pass
    return reader.rounds


def test_a_gamma_chosen_after_a_round_has_begun_is_for_the_next() -> None:
    target, gamma = AheadOnce(), FixedGamma(0)
    drafts = WrittenDrafts(point_mass(*TRUTH[4:6]))

    def draft_from_the_third_round(done: Round) -> None:
        gamma.value = 2 * (done.base_len > 3)

    rounds = rounds_of(make_call(), target, drafts, gamma, draft_from_the_third_round)
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
def test_only_plain_rounds_of_which_nothing_more_is_told_may_be_followed(
    speculation: Speculation, gamma: int, expected: list[bool]
) -> None:
    target = DirectTarget()
    assert rounds_of(make_call(speculation=speculation), target, WrittenDrafts(), FixedGamma(gamma))
    assert [row.runs_ahead for row in target.rows[:4]] == expected


def test_a_round_whose_source_may_guess_is_always_asked_for() -> None:
    target, drafts = DirectTarget(), WrittenDrafts()
    drafts.guesses = True
    assert rounds_of(make_call(), target, drafts, FixedGamma(0))
    assert not any(row.runs_ahead for row in target.rows)


class Guessing(WrittenDrafts):
    """A source in the verifier that guesses the next two tokens from the fourth round on."""

    def guess(self) -> Proposal:
        self.asked.append(0)
        rounds = len(self.asked)
        self.guesses = rounds >= 4
        return Proposal(point_mass(*TRUTH[rounds - 1 : rounds + 1]) if self.guesses else NO_DRAFT, local=True)


def test_a_late_guess_ends_a_run_of_passes() -> None:
    target, drafts = AheadOnce(), Guessing()
    rounds = rounds_of(make_call(), target, drafts, FixedGamma(0))
    assert tuple(token for done in rounds for token in done.tokens) == TRUTH
    assert [row.runs_ahead for row in target.rows[:5]] == [False, False, True, False, False]
    assert [len(done.draft) for done in rounds[:5]] == [0, 0, 0, 0, 2]
    assert rounds[3].fallback == Fallback.NOT_WORTH_IT


@pytest.mark.parametrize(("ahead", "prefills"), [(True, []), (False, [2])])
def test_a_first_round_that_has_begun_reads_the_whole_prompt(ahead: bool, prefills: list[int]) -> None:
    target, call = DirectTarget(), make_call()
    target.ahead = ahead
    admission = Row(call, "s#1", 0.0, 11, call.tokens, goal=0, runs_ahead=True)
    parts: Any = target, WrittenDrafts(), FixedGamma(0), lambda _, __: None, Collected()
    target.enter(Sequence(admission, 2, *parts))
    while target.advance():
        pass
    assert target.prefills == prefills
    assert all(row.runs_ahead for row in target.rows)


class Guesses(WrittenDrafts):
    """A source in the verifier that always has the next token. The drafter beside it never answers."""

    def guess(self) -> Proposal:
        return Proposal(point_mass(TRUTH[0]), local=True)


class Waiting(DirectTarget):
    """Counts the drafts waited for, which never arrive."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = 0

    def await_draft(self, sequence: Sequence, gamma: int) -> None:
        self.waits += 1


@pytest.mark.parametrize(
    ("drafts", "gamma", "asked"), [(Guesses, 0, 2), (Guesses, 2, 2), (WrittenDrafts, 0, 2), (WrittenDrafts, 2, 0)]
)
def test_a_round_with_a_known_draft_is_requested_before_the_last_report(
    drafts: type[WrittenDrafts], gamma: int, asked: int
) -> None:
    target, told = Waiting(), list[int]()
    admission = Row(make_call(), "s#1", 0.0, 11, (1, 2, 3), goal=0)
    reader = Collected(lambda _: told.append(len(target.rows)))
    parts: Any = target, drafts(), FixedGamma(gamma), lambda _, __: None, reader
    target.enter(Sequence(admission, 512, *parts))
    target.advance()
    assert told == [asked] * bool(asked)
    assert target.waits == (not asked)


def test_the_sequences_of_a_pass_ask_for_the_next_before_any_of_them_tells() -> None:
    target, told = DirectTarget(), list[int]()
    admission = Row(make_call(), "s#1", 0.0, 11, (1, 2, 3), goal=0)
    count = lambda *_: told.append(len(target.rows))  # noqa: E731 - number of rows at the report of a round
    for _ in range(3):
        parts: Any = target, WrittenDrafts(), FixedGamma(0), count, Collected()
        target.enter(Sequence(admission, 512, *parts))
    target.advance()
    assert told == [6, 6, 6]
