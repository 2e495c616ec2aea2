"""A sequence drafts, is verified, cuts, commits and reports."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from specdec.errors import InternalError
from specdec.rules.draft import NO_DRAFT
from specdec.rules.speculation import Mode, Origin, Speculation
from specdec.sampling.params import FinishReason, SamplingParams
from specdec.wire.generation import Fallback, GenerationCall, Round, RoundDetail, Speedup
from tests.unit.verifier_service.verifier_fakes import (
    Collected,
    DirectTarget,
    FixedGamma,
    WrittenDrafts,
    continuation,
    make_call,
    make_metrics,
    point_mass,
)
from verifier_service.backends.batch_plan import Gathers, Outcome, Row
from verifier_service.drafts.drafts import Drafts, Proposal
from verifier_service.passes.generations import length_limit
from verifier_service.passes.sequence import Sequence

TRUTH = continuation(3, 8)


def ignored(done: Round, awaited: int) -> None:
    """Count nothing."""


def make_sequence(
    call: GenerationCall,
    target: DirectTarget,
    drafts: Any,
    gamma: int = 3,
    chunk_tokens: int = 512,
    context: int = 100,
    count: Callable[[Round, int], None] = ignored,
    credit: float = math.inf,
) -> Sequence:
    admission = Row(call, "s#1", 0.0, length_limit(call, context), call.tokens, goal=0)
    return Sequence(admission, chunk_tokens, target, drafts, FixedGamma(gamma), count, Collected(), credit)  # type: ignore[arg-type]


def rounds_of(sequence: Sequence) -> list[Round]:
    target: Any = sequence._loop
    reader: Any = sequence._reader
    if not sequence.ended_before():
        target.enter(sequence)
    while target.advance():
        pass
    assert not reader.errors
    return list(reader.rounds)


def tokens_of(rounds: list[Round]) -> tuple[int, ...]:
    return tuple(token for done in rounds for token in done.tokens)


def test_plain_decoding_is_the_same_loop_with_empty_drafts() -> None:
    target = DirectTarget()
    rounds = rounds_of(make_sequence(make_call(), target, Drafts(), gamma=0))
    assert tokens_of(rounds) == TRUTH
    assert [done.base_len for done in rounds] == list(range(3, 11))
    assert all(row.draft is NO_DRAFT for row in target.rows)
    assert {done.fallback for done in rounds} == {Fallback.NONE}
    assert rounds[-1].finish is FinishReason.LENGTH


def test_good_drafts_shorten_it() -> None:
    drafts = WrittenDrafts(NO_DRAFT, point_mass(*TRUTH[1:4]), point_mass(*TRUTH[5:8]))
    rounds = rounds_of(make_sequence(make_call(), DirectTarget(), drafts))
    assert tokens_of(rounds) == TRUTH
    assert [done.accepted for done in rounds] == [0, 3, 2]
    assert rounds[1].origins == (Origin.ACCEPTED, Origin.ACCEPTED, Origin.ACCEPTED, Origin.BONUS)


def test_drafts_without_room_in_the_pass_count_as_never_made() -> None:
    target, drafts = DirectTarget(), WrittenDrafts(NO_DRAFT, point_mass(*TRUTH[1:4]))
    target.room = 1
    rounds = rounds_of(make_sequence(make_call(), target, drafts))
    assert tokens_of(rounds) == TRUTH
    assert (rounds[1].draft, rounds[1].accepted, rounds[1].fallback) == (TRUTH[1:2], 1, Fallback.NONE)
    assert drafts.commits[1][:2] == (TRUTH[1:3], 1)
    assert drafts.distrusted == 0


class TwoFirstDrafts(Drafts):
    """A head that drafts two tokens for the first position, every second time."""

    def __init__(self) -> None:
        self.count = 0

    def proposal(self) -> Proposal:
        self.count += 1
        return Proposal(drafter="head", head=1, siblings=self.count % 2 == 1)


class PathTarget(DirectTarget):
    """A target that keeps these nodes of the trees that a head drafts."""

    def __init__(self, *paths: tuple[int, ...] | None) -> None:
        super().__init__()
        self.paths = list(paths)
        self.siblings: list[bool] = []

    def judge(self, row: Row) -> Outcome:
        outcome = super().judge(row)
        if not row.head.gamma:
            return outcome
        self.siblings.append(row.head.siblings)
        return outcome._replace(verdict=outcome.verdict._replace(path=self.paths.pop(0)))


def test_each_verdict_says_whether_it_kept_a_second_draft() -> None:
    """None without a second draft, as in the first round, in which a head cannot draft."""
    target = PathTarget((1,), None, (0,), None, (), None, None)
    sequence = make_sequence(make_call(), target, TwoFirstDrafts(), gamma=1)
    assert tokens_of(rounds_of(sequence)) == TRUTH
    assert target.siblings == [True, False] * 3 + [True]
    assert sequence._gamma.seconds == [True, None, False, None, False, None, None]  # type: ignore[attr-defined]


def test_gamma_leaves_room_for_the_token_the_target_adds() -> None:
    drafts = WrittenDrafts()
    rounds_of(make_sequence(make_call(max_tokens=3), DirectTarget(), drafts, gamma=9))
    assert drafts.asked == [2, 1]


def test_the_context_caps_gamma_and_ends_the_generation() -> None:
    drafts = WrittenDrafts()
    rounds = rounds_of(make_sequence(make_call(max_tokens=50), DirectTarget(), drafts, gamma=9, context=5))
    assert drafts.asked == [1]
    assert rounds[-1].finish is FinishReason.LENGTH


def test_an_end_id_inside_a_draft_cuts_the_round_and_its_counts() -> None:
    call = make_call(stop_token_ids=(TRUTH[2],))
    rounds = rounds_of(make_sequence(call, DirectTarget(), WrittenDrafts(NO_DRAFT, point_mass(*TRUTH[1:4]))))
    assert tokens_of(rounds) == TRUTH[:3]
    assert rounds[-1].accepted == 2
    assert rounds[-1].finish is FinishReason.STOP


def test_each_verdict_is_told_but_the_last() -> None:
    drafts = WrittenDrafts(NO_DRAFT, point_mass(TRUTH[1], 15, 15))
    rounds_of(make_sequence(make_call(max_tokens=4), DirectTarget(), drafts))
    assert drafts.commits == [(TRUTH[:1], 0, 2), (TRUTH[1:3], 2, 0)]
    assert drafts.closed == 1


def test_a_long_prompt_is_prefilled_but_for_the_piece_of_the_first_verdict() -> None:
    target, prompt = DirectTarget(), tuple(range(10))
    drafts = WrittenDrafts(point_mass(*continuation(9, 2)))
    call = make_call(tokens=prompt, prompt_len=10)
    rounds = rounds_of(make_sequence(call, target, drafts, chunk_tokens=4))
    assert target.prefills == [8]
    assert target.rows[0].tokens == prompt
    assert target.rows[0].draft.tokens == continuation(9, 2)
    assert rounds[0].accepted == 2


def test_base_len_counts_prompt_and_output_of_before() -> None:
    call = make_call(tokens=(1, 2, 3, *TRUTH[:4]), prompt_len=3)
    target = DirectTarget()
    rounds = rounds_of(make_sequence(call, target, Drafts(), gamma=0))
    assert rounds[0].base_len == target.rows[0].goal == 7
    assert tokens_of(rounds) == TRUTH[4:]


@pytest.mark.parametrize(
    ("changes", "finish"),
    [
        ({"tokens": (1, 2, 3, 4, 5), "max_tokens": 2}, FinishReason.LENGTH),
        ({"tokens": (1, 2, 3, 4, 5), "stop_token_ids": (5,)}, FinishReason.STOP),
        ({"max_tokens": 0}, FinishReason.LENGTH),
    ],
)
def test_what_had_ended_before_ends_at_once(changes: dict[str, object], finish: FinishReason) -> None:
    target = DirectTarget()
    (only,) = rounds_of(make_sequence(make_call(**changes), target, Drafts()))
    assert (only.tokens, only.finish) == ((), finish)
    assert target.rows == []


def test_an_end_id_in_the_prompt_ends_nothing() -> None:
    rounds = rounds_of(make_sequence(make_call(stop_token_ids=(3,)), DirectTarget(), Drafts()))
    assert tokens_of(rounds) == TRUTH


def test_a_draft_that_fails_is_reported_and_its_source_distrusted() -> None:
    target, drafts = DirectTarget(), WrittenDrafts(NO_DRAFT, point_mass(1, 2))
    target.refuses_drafts = True
    rounds = rounds_of(make_sequence(make_call(), target, drafts))
    assert drafts.distrusted == 1
    assert (rounds[1].draft, rounds[1].fallback) == ((), Fallback.UNAVAILABLE)
    assert tokens_of(rounds) == TRUTH


def test_the_reason_of_a_missing_draft_is_passed_on() -> None:
    drafts = WrittenDrafts(reason=Fallback.LATE)
    rounds = rounds_of(make_sequence(make_call(max_tokens=3), DirectTarget(), drafts))
    assert [done.fallback for done in rounds] == [Fallback.LATE, Fallback.LATE, Fallback.NONE]


def test_a_right_to_the_whole_length_is_held_and_given_back() -> None:
    target, drafts = DirectTarget(), WrittenDrafts()
    sequence = make_sequence(make_call(), target, drafts)
    target.enter(sequence)
    target.advance()
    assert target.admission is not None
    assert (target.admission.kv_name, target.admission.limit, target.admission.goal) == ("s#1", 11, 0)
    assert target.holds_kv
    sequence.close()
    assert not target.holds_kv
    assert drafts.closed == 1
    assert sequence._gamma.closed  # type: ignore[attr-defined]
    assert not target.advance(), "what a sequence that ended has asked for is taken back"


def test_history_is_carried_only_for_parameters_that_count() -> None:
    target = DirectTarget()
    rounds_of(make_sequence(make_call(), target, Drafts()))
    assert target.rows[3].history.output == ()
    counted = DirectTarget()
    call = make_call(sampling=SamplingParams(temperature=0.0, frequency_penalty=1.0))
    rounds_of(make_sequence(call, counted, Drafts()))
    assert counted.rows[3].history.prompt == (1, 2, 3)
    assert counted.rows[3].history.output == TRUTH[:3]


def test_timing_is_of_this_round() -> None:
    (first, *_) = rounds_of(make_sequence(make_call(), DirectTarget(), WrittenDrafts()))
    assert (first.timing.draft, first.timing.queue, first.timing.verify) == (0.3, pytest.approx(0.1, abs=0.05), 0.2)


def test_a_round_says_how_many_drafts_it_waited_for() -> None:
    drafts = WrittenDrafts(NO_DRAFT, point_mass(*TRUTH[1:3]), point_mass(*TRUTH[4:7]))
    counted: list[tuple[int, int]] = []
    call = make_call(speculation=Speculation(Mode.REJECTION))
    rounds = rounds_of(
        make_sequence(
            call, DirectTarget(), drafts, count=lambda done, awaited: counted.append((awaited, len(done.draft)))
        )
    )
    assert counted == [(0, 0), (3, 2), (3, 3)]
    assert len(rounds) == 3


def test_a_round_short_of_drafts_counts_as_starved() -> None:
    metrics = make_metrics()
    drafts = WrittenDrafts(NO_DRAFT, point_mass(*TRUTH[1:3]), point_mass(*TRUTH[4:7]))
    call = make_call(speculation=Speculation(Mode.REJECTION))
    rounds_of(make_sequence(call, DirectTarget(), drafts, count=metrics.count))

    def value(name: str) -> float | None:
        return metrics.registry.get_sample_value(f"specdec_spec_{name}_total")

    assert [value("asked_rounds"), value("asked_tokens"), value("starved_rounds")] == [2.0, 6.0, 1.0]


def test_a_round_that_chose_no_draft_reports_it_and_one_without_room_not() -> None:
    declining = rounds_of(make_sequence(make_call(max_tokens=2), DirectTarget(), WrittenDrafts(), gamma=0))
    assert [done.fallback for done in declining] == [Fallback.NOT_WORTH_IT] * 2
    full = rounds_of(make_sequence(make_call(max_tokens=1), DirectTarget(), WrittenDrafts(), gamma=3))
    assert [done.fallback for done in full] == [Fallback.NONE]


def test_the_next_pass_waits_only_for_rounds_that_gather() -> None:
    target, drafts = DirectTarget(), WrittenDrafts()
    rounds_of(make_sequence(make_call(max_tokens=3), target, drafts))
    assert target.expecting == 2  # the last round has no room for a draft
    drafts.gathers = Gathers.NOT
    rounds_of(make_sequence(make_call(max_tokens=3), target, drafts))
    assert target.expecting == 2


def test_every_round_says_what_drafts_bring() -> None:
    rounds = rounds_of(make_sequence(make_call(max_tokens=2), DirectTarget(), WrittenDrafts()))
    assert {done.speedup for done in rounds} == {Speedup(1.5, 1.25)}


@pytest.mark.parametrize(("held", "told"), [(0, 0), (2, 2), (9, 3)])
def test_the_first_round_says_how_much_of_the_prompt_had_kv(held: int, told: int) -> None:
    target = DirectTarget()
    target.held = held
    rounds = rounds_of(make_sequence(make_call(), target, Drafts(), gamma=0))
    assert [done.cached_tokens for done in rounds] == [told] + [0] * (len(rounds) - 1)


def test_a_round_says_on_what_it_rests_where_the_call_asks() -> None:
    call = make_call(speculation=Speculation(Mode.REJECTION, 3, detail=True))
    drafts = WrittenDrafts(NO_DRAFT, point_mass(*TRUTH[1:4]))
    told = rounds_of(make_sequence(call, DirectTarget(), drafts))
    silent = rounds_of(make_sequence(make_call(), DirectTarget(), WrittenDrafts(NO_DRAFT, point_mass(*TRUTH[1:4]))))
    assert [done.tokens for done in told] == [done.tokens for done in silent]
    assert {done.detail for done in silent} == {None}
    assert told[1].detail == RoundDetail(3, "fixed", 0.5)
    assert [done.detail and done.detail.gamma for done in told] == [3, 3, 2, 1, 0]


def test_a_target_that_reads_a_prompt_without_drafts_waits_for_none() -> None:
    target, drafts = DirectTarget(), WrittenDrafts(point_mass(*TRUTH[1:4]))
    target.drafts_first = False
    rounds = rounds_of(make_sequence(make_call(), target, drafts))
    assert tokens_of(rounds) == TRUTH
    assert (rounds[0].draft, rounds[0].fallback) == ((), Fallback.FIRST_ROUND)
    assert [row.prefilling for row in target.rows] == [True] + [False] * (len(rounds) - 1)
    assert rounds[1].draft == TRUTH[1:4]


def test_no_round_begins_without_credit_and_the_place_is_kept() -> None:
    target, call = DirectTarget(), make_call()
    sequence = make_sequence(call, target, Drafts(), gamma=0, credit=len(call.tokens) + 2)
    reader: Any = sequence._reader
    assert tokens_of(rounds_of(sequence)) == TRUTH[:2]
    assert target.holds_kv
    sequence.grant(len(call.tokens) + 1)
    assert not target.advance()
    sequence.grant(len(call.tokens) + 3)
    while target.advance():
        pass
    assert tokens_of(reader.rounds) == TRUTH[:3]
    sequence.grant(math.inf)
    while target.advance():
        pass
    assert tokens_of(reader.rounds) == TRUTH


def test_a_round_with_drafts_overshoots_its_credit_and_is_the_last_one() -> None:
    call, drafts = make_call(), WrittenDrafts(NO_DRAFT, point_mass(*TRUTH[1:4]))
    sequence = make_sequence(call, DirectTarget(), drafts, credit=len(call.tokens) + 2)
    assert tokens_of(rounds_of(sequence)) == TRUTH[:5]
    assert drafts.asked == [3, 3], "no draft is waited for without credit"


def test_a_pass_runs_ahead_only_as_far_as_the_credit() -> None:
    target, call = DirectTarget(), make_call()
    sequence = make_sequence(call, target, WrittenDrafts(), gamma=0, credit=len(call.tokens) + 6)
    rounds_of(sequence)
    assert [row.runs_ahead for row in target.rows] == [False, False, True, True, True, False]


def test_an_error_comes_after_the_rounds_that_are_committed() -> None:
    target = DirectTarget()
    sequence = make_sequence(make_call(), target, Drafts(), gamma=0)
    target.enter(sequence)
    (pending, outcome), *_ = target.pending
    target.pending = []
    pending.conclude(outcome)
    sequence.fail(ValueError("broken"))
    reader: Any = sequence._reader
    assert tokens_of(reader.rounds) == TRUTH[:1]
    assert [str(error) for error in reader.errors] == ["broken"]
    assert not target.pending
    sequence.fail(ValueError("again"))
    sequence.close()
    assert len(reader.errors) == 1


def test_a_bug_in_one_sequence_ends_that_one() -> None:
    class Broken(WrittenDrafts):
        def commit(self, tokens: object, judged: int, gamma: int) -> None:
            raise RuntimeError("a bug")

    target = DirectTarget()
    sequence = make_sequence(make_call(), target, Broken(NO_DRAFT))
    reader: Any = sequence._reader
    target.enter(sequence)
    ((_, outcome),), target.pending = target.pending, []
    sequence.guarded(sequence.conclude, outcome)
    assert [str(error) for error in reader.errors] == ["a bug"]
    assert sequence.ended


def test_a_row_without_a_verdict_is_an_error() -> None:
    target = DirectTarget()
    sequence = make_sequence(make_call(), target, Drafts(), gamma=0)
    target.enter(sequence)
    with pytest.raises(InternalError, match="without a verdict"):
        sequence.conclude(None)
