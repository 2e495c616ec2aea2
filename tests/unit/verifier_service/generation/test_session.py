"""A session proposes, verifies, cuts, commits and yields."""

from collections.abc import Callable
from typing import Any

import pytest

from specdec.rules.draft import NO_DRAFT
from specdec.rules.params import FinishReason, Mode, Origin, SamplingParams, Speculation
from specdec.wire.generation import Fallback, GenerationCall, Round, RoundDetail, Speedup
from tests.unit.verifier_service.verifier_fakes import (
    DirectTarget,
    FixedGamma,
    WrittenDrafts,
    continuation,
    make_call,
    make_metrics,
    point_mass,
)
from verifier_service.batching.batch_plan import Gathers, Row
from verifier_service.drafters.drafts import Drafts
from verifier_service.generation.generations import length_limit
from verifier_service.generation.session import Session

TRUTH = continuation(3, 8)


def ignored(done: Round, awaited: int) -> None:
    """Counts nothing."""


def make_session(
    call: GenerationCall,
    target: DirectTarget,
    drafts: Any,
    gamma: int = 3,
    chunk_tokens: int = 512,
    context: int = 100,
    count: Callable[[Round, int], None] = ignored,
) -> Session:
    admission = Row(call, "s#1", 0.0, length_limit(call, context), call.tokens, goal=0)
    return Session(admission, chunk_tokens, target, drafts, FixedGamma(gamma), count)  # type: ignore[arg-type]


async def rounds_of(session: Session) -> list[Round]:
    return [done async for done in session.run()]


def tokens_of(rounds: list[Round]) -> tuple[int, ...]:
    return tuple(token for done in rounds for token in done.tokens)


async def test_plain_decoding_is_the_same_loop_with_empty_drafts() -> None:
    target = DirectTarget()
    rounds = await rounds_of(make_session(make_call(), target, Drafts(), gamma=0))
    assert tokens_of(rounds) == TRUTH
    assert [done.base_len for done in rounds] == list(range(3, 11))
    assert all(row.draft is NO_DRAFT for row in target.rows)
    assert {done.fallback for done in rounds} == {Fallback.NONE}
    assert rounds[-1].finish is FinishReason.LENGTH


async def test_good_drafts_shorten_it() -> None:
    drafts = WrittenDrafts(NO_DRAFT, point_mass(*TRUTH[1:4]), point_mass(*TRUTH[5:8]))
    rounds = await rounds_of(make_session(make_call(), DirectTarget(), drafts))
    assert tokens_of(rounds) == TRUTH
    assert [done.accepted for done in rounds] == [0, 3, 2]
    assert rounds[1].origins == (Origin.ACCEPTED, Origin.ACCEPTED, Origin.ACCEPTED, Origin.BONUS)


async def test_drafts_without_room_in_the_pass_are_no_fault_and_count_as_never_made() -> None:
    target, drafts = DirectTarget(), WrittenDrafts(NO_DRAFT, point_mass(*TRUTH[1:4]))
    target.room = 1
    rounds = await rounds_of(make_session(make_call(), target, drafts))
    assert tokens_of(rounds) == TRUTH
    assert (rounds[1].draft, rounds[1].accepted, rounds[1].fallback) == (TRUTH[1:2], 1, Fallback.NONE)
    assert drafts.commits[1][:2] == (TRUTH[1:3], 1)
    assert drafts.distrusted == 0


async def test_gamma_leaves_room_for_the_token_the_target_adds() -> None:
    drafts = WrittenDrafts()
    await rounds_of(make_session(make_call(max_tokens=3), DirectTarget(), drafts, gamma=9))
    assert drafts.asked == [2, 1]


async def test_the_context_caps_gamma_and_ends_the_generation() -> None:
    drafts = WrittenDrafts()
    rounds = await rounds_of(make_session(make_call(max_tokens=50), DirectTarget(), drafts, gamma=9, context=5))
    assert drafts.asked == [1]
    assert rounds[-1].finish is FinishReason.LENGTH


async def test_an_end_id_inside_a_draft_cuts_the_round_and_its_counts() -> None:
    call = make_call(stop_token_ids=(TRUTH[2],))
    rounds = await rounds_of(make_session(call, DirectTarget(), WrittenDrafts(NO_DRAFT, point_mass(*TRUTH[1:4]))))
    assert tokens_of(rounds) == TRUTH[:3]
    assert rounds[-1].accepted == 2
    assert rounds[-1].finish is FinishReason.STOP


async def test_each_verdict_is_told_but_the_last() -> None:
    drafts = WrittenDrafts(NO_DRAFT, point_mass(TRUTH[1], 15, 15))
    await rounds_of(make_session(make_call(max_tokens=4), DirectTarget(), drafts))
    assert drafts.commits == [(TRUTH[:1], 0, 2), (TRUTH[1:3], 2, 0)]
    assert drafts.closed == 1


async def test_a_long_prompt_is_prefilled_but_for_its_last_piece_which_joins_the_first_verdict() -> None:
    target, prompt = DirectTarget(), tuple(range(10))
    drafts = WrittenDrafts(point_mass(*continuation(9, 2)))
    call = make_call(tokens=prompt, prompt_len=10)
    rounds = await rounds_of(make_session(call, target, drafts, chunk_tokens=4))
    assert target.prefills == [8]
    assert target.rows[0].tokens == prompt
    assert target.rows[0].draft.tokens == continuation(9, 2)
    assert rounds[0].accepted == 2


async def test_base_len_counts_prompt_and_output_of_before() -> None:
    call = make_call(tokens=(1, 2, 3, *TRUTH[:4]), prompt_len=3)
    target = DirectTarget()
    rounds = await rounds_of(make_session(call, target, Drafts(), gamma=0))
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
async def test_what_had_ended_before_ends_at_once(changes: dict[str, object], finish: FinishReason) -> None:
    target = DirectTarget()
    (only,) = await rounds_of(make_session(make_call(**changes), target, Drafts()))
    assert (only.tokens, only.finish) == ((), finish)
    assert target.rows == []


async def test_an_end_id_in_the_prompt_ends_nothing() -> None:
    rounds = await rounds_of(make_session(make_call(stop_token_ids=(3,)), DirectTarget(), Drafts()))
    assert tokens_of(rounds) == TRUTH


async def test_a_draft_that_could_not_be_verified_is_reported_and_its_source_distrusted() -> None:
    target, drafts = DirectTarget(), WrittenDrafts(NO_DRAFT, point_mass(1, 2))
    target.refuses_drafts = True
    rounds = await rounds_of(make_session(make_call(), target, drafts))
    assert drafts.distrusted == 1
    assert (rounds[1].draft, rounds[1].fallback) == ((), Fallback.UNAVAILABLE)
    assert tokens_of(rounds) == TRUTH


async def test_the_reason_of_a_missing_draft_is_passed_on() -> None:
    drafts = WrittenDrafts(reason=Fallback.LATE)
    rounds = await rounds_of(make_session(make_call(max_tokens=3), DirectTarget(), drafts))
    assert [done.fallback for done in rounds] == [Fallback.LATE, Fallback.LATE, Fallback.NONE]


async def test_a_right_to_the_whole_length_is_held_and_given_back() -> None:
    target, drafts = DirectTarget(), WrittenDrafts()
    session = make_session(make_call(), target, drafts)
    stream = session.run()
    await anext(stream)
    assert target.admission is not None
    assert (target.admission.kv_name, target.admission.limit, target.admission.goal) == ("s#1", 11, 0)
    assert target.holds_kv
    await stream.aclose()
    assert not target.holds_kv
    assert drafts.closed == 1
    assert session._gamma.closed


async def test_history_is_carried_only_for_parameters_that_count() -> None:
    target = DirectTarget()
    await rounds_of(make_session(make_call(), target, Drafts()))
    assert target.rows[3].history.output == ()
    counted = DirectTarget()
    call = make_call(sampling=SamplingParams(temperature=0.0, frequency_penalty=1.0))
    await rounds_of(make_session(call, counted, Drafts()))
    assert counted.rows[3].history.prompt == (1, 2, 3)
    assert counted.rows[3].history.output == TRUTH[:3]


async def test_timing_is_of_this_round() -> None:
    (first, *_) = await rounds_of(make_session(make_call(), DirectTarget(), WrittenDrafts()))
    assert (first.timing.draft, first.timing.queue, first.timing.verify) == (0.3, pytest.approx(0.1, abs=0.05), 0.2)


async def test_a_round_says_how_many_drafts_it_waited_for() -> None:
    drafts = WrittenDrafts(NO_DRAFT, point_mass(*TRUTH[1:3]), point_mass(*TRUTH[4:7]))
    counted: list[tuple[int, int]] = []
    call = make_call(speculation=Speculation(Mode.REJECTION))
    rounds = await rounds_of(
        make_session(
            call, DirectTarget(), drafts, count=lambda done, awaited: counted.append((awaited, len(done.draft)))
        )
    )
    assert counted == [(0, 0), (3, 2), (3, 3)]
    assert len(rounds) == 3


async def test_a_round_short_of_drafts_counts_as_starved() -> None:
    metrics = make_metrics()
    drafts = WrittenDrafts(NO_DRAFT, point_mass(*TRUTH[1:3]), point_mass(*TRUTH[4:7]))
    call = make_call(speculation=Speculation(Mode.REJECTION))
    await rounds_of(make_session(call, DirectTarget(), drafts, count=metrics.count))

    def value(name: str) -> float | None:
        return metrics.registry.get_sample_value(f"specdec_spec_{name}_total")

    assert [value("asked_rounds"), value("asked_tokens"), value("starved_rounds")] == [2.0, 6.0, 1.0]


async def test_a_round_that_chose_not_to_draft_says_so_and_one_without_room_does_not() -> None:
    declining = await rounds_of(make_session(make_call(max_tokens=2), DirectTarget(), WrittenDrafts(), gamma=0))
    assert [done.fallback for done in declining] == [Fallback.NOT_WORTH_IT] * 2
    full = await rounds_of(make_session(make_call(max_tokens=1), DirectTarget(), WrittenDrafts(), gamma=3))
    assert [done.fallback for done in full] == [Fallback.NONE]


async def test_the_next_pass_waits_only_for_rounds_that_gather() -> None:
    target, drafts = DirectTarget(), WrittenDrafts()
    await rounds_of(make_session(make_call(max_tokens=3), target, drafts))
    assert target.expecting == 2  # the last round has no room for a draft
    drafts.gathers = Gathers.NOT
    await rounds_of(make_session(make_call(max_tokens=3), target, drafts))
    assert target.expecting == 2


async def test_every_round_says_what_drafts_bring() -> None:
    rounds = await rounds_of(make_session(make_call(max_tokens=2), DirectTarget(), WrittenDrafts()))
    assert {done.speedup for done in rounds} == {Speedup(1.5, 1.25)}


@pytest.mark.parametrize(("held", "told"), [(0, 0), (2, 2), (9, 3)])
async def test_the_first_round_says_how_much_of_the_prompt_had_kv(held: int, told: int) -> None:
    target = DirectTarget()
    target.held = held
    rounds = await rounds_of(make_session(make_call(), target, Drafts(), gamma=0))
    assert [done.cached_tokens for done in rounds] == [told] + [0] * (len(rounds) - 1)


async def test_a_round_says_on_what_it_rests_where_the_call_asks() -> None:
    call = make_call(speculation=Speculation(Mode.REJECTION, 3, detail=True))
    drafts = WrittenDrafts(NO_DRAFT, point_mass(*TRUTH[1:4]))
    told = await rounds_of(make_session(call, DirectTarget(), drafts))
    silent = await rounds_of(
        make_session(make_call(), DirectTarget(), WrittenDrafts(NO_DRAFT, point_mass(*TRUTH[1:4])))
    )
    assert [done.tokens for done in told] == [done.tokens for done in silent]
    assert {done.detail for done in silent} == {None}
    assert told[1].detail == RoundDetail(3, "fixed", 0.5)
    assert [done.detail and done.detail.gamma for done in told] == [3, 3, 2, 1, 0]


async def test_a_target_that_reads_a_prompt_without_drafts_waits_for_none() -> None:
    target, drafts = DirectTarget(), WrittenDrafts(point_mass(*TRUTH[1:4]))
    target.drafts_first = False
    rounds = await rounds_of(make_session(make_call(), target, drafts))
    assert tokens_of(rounds) == TRUTH
    assert (rounds[0].draft, rounds[0].fallback) == ((), Fallback.FIRST_ROUND)
    assert [row.catching_up for row in target.rows] == [True] + [False] * (len(rounds) - 1)
    assert rounds[1].draft == TRUTH[1:4]
