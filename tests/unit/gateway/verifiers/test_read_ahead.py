"""Rounds that come while the last one is committed wait for their taker, and plain neighbours become one."""

import asyncio
import gc
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.verifiers.read_ahead import MOST_WAITING, joinable, joined, read_ahead
from gateway.verifiers.rounds import RoundCheck
from specdec.errors import NoVerifier
from specdec.rules.logprobs import TokenLogprobs
from specdec.rules.params import FinishReason, Origin, SamplingParams, Speculation
from specdec.wire.generation import GenerationCall, Round, RoundDetail, Speedup, Timing
from tests.gateway_fakes import until

SCORES = TokenLogprobs(-1.0, ((4, -1.0),))
FIRST = Round(base_len=3, tokens=(4,), origins=(Origin.PLAIN,))
SECOND = replace(FIRST, base_len=4, tokens=(5,))
CALL = GenerationCall(
    tokens=(1, 2, 3),
    prompt_len=3,
    sampling=SamplingParams(),
    max_tokens=4,
    stop_token_ids=(),
    speculation=Speculation(),
)


def plain(count: int, start: int = 3) -> list[Round]:
    """Plain rounds, each behind the last."""
    return [replace(FIRST, base_len=start + index, tokens=(index,)) for index in range(count)]


def drafted(count: int) -> list[Round]:
    """Rounds that cannot be joined."""
    return [replace(each, draft=(9,)) for each in plain(count)]


class Source:
    """A verifier's stream: some rounds at once, and then an error, the end, or silence until it is closed."""

    def __init__(self, rounds: Sequence[Round], error: Exception | None = None, silent: bool = False) -> None:
        self.given = 0
        self.closed = False
        self._rounds = rounds
        self._error = error
        self._silent = silent

    async def stream(self) -> AsyncGenerator[Round]:
        try:
            for each in self._rounds:
                self.given += 1
                yield each
            if self._silent:
                await asyncio.sleep(3600)
            if self._error is not None:
                raise self._error
        finally:
            self.closed = True


async def idle() -> None:
    """Let everything else run until it waits."""
    for _ in range(20):
        await asyncio.sleep(0)


def folded(rounds: Sequence[Round]) -> list[Round]:
    """The rounds, joined wherever that is possible."""
    groups: list[list[Round]] = []
    for each in rounds:
        if groups and joinable(groups[-1][-1], each):
            groups[-1].append(each)
        else:
            groups.append([each])
    return [joined(group) for group in groups]


def test_a_joined_round_has_all_that_its_rounds_had() -> None:
    rounds = [
        replace(
            each,
            logprobs=(TokenLogprobs(-1.0 - index),),
            timing=Timing(1.0, 10.0 + index, 100.0),
            speedup=Speedup(index, 1.0),
            fallback="late",
        )
        for index, each in enumerate(plain(3))
    ]
    rounds[0] = replace(rounds[0], cached_tokens=2)
    rounds[2] = replace(rounds[2], finish=FinishReason.LENGTH)
    assert folded(rounds) == [
        Round(
            base_len=3,
            tokens=(0, 1, 2),
            origins=(Origin.PLAIN,) * 3,
            logprobs=(TokenLogprobs(-1.0), TokenLogprobs(-2.0), TokenLogprobs(-3.0)),
            timing=Timing(3.0, 33.0, 300.0),
            speedup=Speedup(2, 1.0),
            finish=FinishReason.LENGTH,
            fallback="late",
            cached_tokens=2,
        )
    ]


def test_a_round_alone_stays_the_same_object() -> None:
    assert joined([FIRST]) is FIRST


def test_plain_neighbours_can_be_joined() -> None:
    assert joinable(FIRST, SECOND)
    assert joinable(replace(FIRST, logprobs=(SCORES,)), replace(SECOND, logprobs=(SCORES,)))
    assert joinable(replace(FIRST, fallback="late"), replace(SECOND, fallback="late"))
    assert joinable(replace(FIRST, cached_tokens=1), replace(SECOND, finish=FinishReason.STOP))


@pytest.mark.parametrize(
    ("of_first", "of_second"),
    [
        ({"draft": (4,)}, {}),
        ({}, {"draft": (5,)}),
        ({"draft": (4,)}, {"draft": (5,)}),
        ({"detail": RoundDetail()}, {}),
        ({}, {"detail": RoundDetail()}),
        ({"detail": RoundDetail()}, {"detail": RoundDetail()}),
        ({"fallback": "late"}, {}),
        ({}, {"fallback": "late"}),
        ({"fallback": "late"}, {"fallback": "no_match"}),
        ({"drafter": "model"}, {}),
        ({}, {"forced": 1}),
        ({"finish": FinishReason.STOP}, {}),
        ({}, {"base_len": 3}),
        ({}, {"base_len": 5}),
        ({"logprobs": (SCORES,)}, {}),
        ({}, {"logprobs": (SCORES,)}),
        ({}, {"tokens": (), "origins": (), "finish": FinishReason.STOP}),
        ({"tokens": (), "origins": ()}, {"base_len": 3}),
        ({}, {"cached_tokens": 1}),
        ({"accepted": 1}, {}),
        ({}, {"accepted": 1}),
        ({"origins": ()}, {"origins": (Origin.PLAIN,) * 2}),
        ({"logprobs": (SCORES,) * 2}, {"logprobs": (SCORES,) * 2}),
    ],
)
def test_nothing_else_can(of_first: dict[str, Any], of_second: dict[str, Any]) -> None:
    assert not joinable(replace(FIRST, **of_first), replace(SECOND, **of_second))


def is_sound(rounds: Sequence[Round]) -> bool:
    check = RoundCheck(CALL, vocab_size=10)
    try:
        for each in rounds:
            check.take(each)
    except NoVerifier:
        return False
    return True


ODD_ROUNDS = st.builds(
    lambda tokens, origins, scores, **fields: Round(
        tokens=tuple(tokens), origins=(Origin.PLAIN,) * origins, logprobs=(SCORES,) * scores, **fields
    ),
    st.lists(st.sampled_from([4, 5, 10]), max_size=2),
    st.integers(0, 2),
    st.integers(0, 2),
    base_len=st.integers(3, 6),
    accepted=st.integers(0, 1),
    cached_tokens=st.sampled_from([0, 1, 4]),
    finish=st.sampled_from([None, FinishReason.STOP]),
)


@given(
    st.lists(
        st.one_of(ODD_ROUNDS, st.builds(lambda base: replace(FIRST, base_len=base), st.integers(3, 7))), max_size=5
    )
)
def test_joining_hides_no_fault_from_the_check_and_makes_none(rounds: list[Round]) -> None:
    assert is_sound(folded(rounds)) == is_sound(rounds)


async def test_rounds_that_came_together_are_joined_up_to_one_that_cannot_be() -> None:
    rounds = [*plain(3), replace(FIRST, base_len=6, draft=(8,)), *plain(2, start=7)]
    source = Source(rounds)
    async with aclosing(read_ahead(source.stream())) as taken:
        assert [each.tokens async for each in taken] == [(0, 1, 2), (4,), (0, 1)]


async def test_rounds_that_come_while_one_is_held_are_joined_to_each_other_only() -> None:
    queue: asyncio.Queue[Round] = asyncio.Queue()

    async def stream() -> AsyncGenerator[Round]:
        while True:
            yield await queue.get()

    first, *others = plain(4)
    async with aclosing(read_ahead(stream())) as taken:
        queue.put_nowait(first)
        assert await anext(taken) is first
        for each in others:
            queue.put_nowait(each)
            await idle()
        assert (await anext(taken)).tokens == (1, 2, 3)


@pytest.mark.parametrize("rounds", [plain(5), drafted(5)])
async def test_an_error_is_raised_behind_the_rounds_that_came_before_it(rounds: list[Round]) -> None:
    found: list[int] = []
    taken = read_ahead(Source(rounds, NoVerifier("lost")).stream())
    with pytest.raises(NoVerifier, match="lost"):  # noqa: PT012 - what came before counts, too
        async for each in taken:
            await idle()
            found += each.tokens
    assert found == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("make", [plain, drafted])
async def test_reading_pauses_where_nobody_takes_and_goes_on_where_somebody_does(make: Any) -> None:
    source, took = Source(make(3 * MOST_WAITING)), 0
    async with aclosing(read_ahead(source.stream())) as taken:
        async for each in taken:
            took += len(each.tokens)
            await idle()
            assert source.given == min(took + MOST_WAITING, 3 * MOST_WAITING)
    assert took == 3 * MOST_WAITING


@pytest.mark.parametrize(
    "source", [Source(plain(1), silent=True), Source(drafted(3 * MOST_WAITING)), Source(plain(1), NoVerifier("lost"))]
)
async def test_closing_leaves_nothing_behind(source: Source) -> None:
    before, complaints = asyncio.all_tasks(), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    async with aclosing(read_ahead(source.stream())) as taken:
        await anext(taken)
        await idle()
    assert source.closed
    assert asyncio.all_tasks() == before
    del taken
    gc.collect()
    await idle()
    assert complaints == []


async def test_a_taker_that_is_cancelled_while_it_waits_ends_the_reading() -> None:
    source, before = Source([], silent=True), asyncio.all_tasks()
    waiting = asyncio.create_task(anext(read_ahead(source.stream())))
    await idle()
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    await until(lambda: source.closed)
    assert asyncio.all_tasks() == before
