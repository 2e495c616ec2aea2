"""Many sessions over little memory: nothing is lost, no session starves, and the loop stays responsive."""

import asyncio
import threading
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial

import pytest
from torch import Tensor

from specdec.engine import Chunk
from specdec.rules.draft import NO_DRAFT
from tests.support.gateway_fakes import until
from tests.unit.verifier_service.passes.scheduling import AwaitedLoop, scheduling
from tests.unit.verifier_service.verifier_fakes import (
    VOCABULARY,
    TableEngine,
    continuation,
    following,
    make_metrics,
    make_row,
    point_mass,
)
from verifier_service.backends.batch_plan import Row
from verifier_service.metrics import VerifierMetrics

crowded = partial(scheduling, max_waiting=64, chunk_tokens=4)


def admission(kv_name: str, tokens: Sequence[int], limit: int, rank: float = 0.0) -> Row:
    """Return the first row of a session."""
    return make_row(kv_name, tokens, 0, limit=limit, rank=rank)


async def generate(scheduler: AwaitedLoop, first: Row, drafted: int = 0, pause: float = 0.0) -> list[int]:
    """Return every token up to the limit, with drafts whose last token is wrong."""
    tokens = list(first.tokens)
    async with scheduler.admitted(first):
        while len(tokens) < first.limit:
            gamma = min(drafted, first.limit - len(tokens) - 1)
            truth = continuation(tokens[-1], gamma)
            draft = point_mass(*truth[:-1], (truth[-1] + 1) % VOCABULARY) if gamma else NO_DRAFT
            outcome = await scheduler.verify(replace(first, tokens=tokens, goal=len(tokens), draft=draft))
            tokens += outcome.verdict.tokens
            if pause:
                await asyncio.sleep(pause)
    return tokens


def counted(metrics: VerifierMetrics) -> float:
    return float(metrics.preemptions._value.get())


@pytest.mark.parametrize("drafted", [0, 3])
async def test_sessions_that_lose_their_kv_say_what_they_would_have_said(drafted: int) -> None:
    engine, metrics = TableEngine(room=40), make_metrics()
    prompts = [[(5 * number + index) % VOCABULARY for index in range(3 + number)] for number in range(6)]
    async with crowded(engine, metrics=metrics) as scheduler, asyncio.timeout(60):
        outputs = await asyncio.gather(
            *(
                generate(
                    scheduler, admission(f"s{number}", prompt, 30, float(number)), drafted, pause=number % 2 * 1e-4
                )
                for number, prompt in enumerate(prompts)
            )
        )
        async with scheduler.admitted(admission("next", [1], 1)):
            assert engine.held == {"next": 1}
    for prompt, tokens in zip(prompts, outputs, strict=True):
        assert tokens == [*prompt, *continuation(prompt[-1], 30 - len(prompt))]
    assert counted(metrics) > 0


async def test_the_last_in_rank_gives_up_its_kv_and_the_first_never_does() -> None:
    engine, metrics = TableEngine(room=40), make_metrics()
    ended: list[str] = []

    async def run(name: str, rank: float) -> None:
        await generate(scheduler, admission(name, [1, 2, 3], 30, rank))
        ended.append(name)

    async with crowded(engine, metrics=metrics) as scheduler, asyncio.timeout(60):
        await asyncio.gather(run("last", 9.0), run("first", 1.0), run("middle", 5.0))
    assert ended == ["first", "middle", "last"]
    prompts = [chunk.session for batch in engine.batches for chunk in batch if len(chunk.tokens) > 1]
    assert prompts.count("first") == 1
    assert prompts.count("last") > 1


async def test_who_comes_first_in_rank_is_let_in_first() -> None:
    engine = TableEngine(room=10)
    entered: list[str] = []

    async def hold(name: str, rank: float) -> None:
        async with scheduler.admitted(admission(name, range(8), 10, rank)):
            entered.append(name)

    async with crowded(engine) as scheduler, asyncio.timeout(60):
        async with scheduler.admitted(admission("inside", range(8), 10)):
            waiting = [asyncio.create_task(hold(name, rank)) for name, rank in (("low", 60.0), ("high", -60.0))]
            await asyncio.sleep(0.01)
        await asyncio.gather(*waiting)
    assert entered == ["high", "low"]


async def test_a_caller_that_stops_asking_keeps_nobody_out() -> None:
    engine = TableEngine(room=10)
    stalled = admission("stalled", range(8), 10)
    async with crowded(engine) as scheduler, scheduler.admitted(stalled), asyncio.timeout(60):
        assert await generate(scheduler, admission("next", [1], 10, 1.0)) == [1, *continuation(1, 9)]
        again = await scheduler.verify(make_row("stalled", [1, 2, 3], limit=10))
        assert again.verdict.tokens == (following(3),)


async def test_sessions_that_decode_take_part_in_every_pass_of_a_long_prompt() -> None:
    engine = TableEngine()
    async with crowded(engine) as scheduler, AsyncExitStack() as stack, asyncio.timeout(60):
        await stack.enter_async_context(scheduler.admitted(admission("decoding", [1], 200)))
        decoding = asyncio.create_task(scheduler.decode(make_row("decoding", [1], limit=200), 190))
        await until(lambda: engine.batches)
        async with scheduler.admitted(admission("long", range(150), 200, 1.0)):
            before = len(engine.batches)
            await scheduler.prefill(make_row("long", [index % VOCABULARY for index in range(150)], 120, rank=1.0))
            passes = engine.batches[before:]
        decoding.cancel()
        await asyncio.wait([decoding])
    prefilling = [batch for batch in passes if any(chunk.session == "long" for chunk in batch)]
    assert len(prefilling) == 120 // 4
    assert all({chunk.session for chunk in batch} == {"long", "decoding"} for batch in prefilling)
    assert all(len(chunk.tokens) <= 4 for batch in prefilling for chunk in batch)


async def test_a_right_to_kv_that_is_known_already_costs_no_pass() -> None:
    engine = TableEngine()
    async with crowded(engine) as scheduler, scheduler.admitted(admission("a", [1, 2, 3], 10)):
        engine.kv["a"] = [1, 2]
        await scheduler.prefill(make_row("a", [1, 2, 3], 2))
        assert engine.batches == []


class SlowEngine(TableEngine):
    """An engine whose passes end when the test allows it."""

    def __init__(self) -> None:
        super().__init__()
        self.began, self.go_on = threading.Event(), threading.Event()
        self.threads: set[str] = set()

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        self.threads.add(threading.current_thread().name)
        self.began.set()
        assert self.go_on.wait(60)
        return super().forward(chunks)


async def test_the_loop_is_free_while_the_model_s_thread_runs_a_pass() -> None:
    engine = SlowEngine()
    async with crowded(engine) as scheduler, scheduler.admitted(admission("a", [1], 10)):
        verdict = scheduler.verify(make_row("a", [1]))
        assert await asyncio.to_thread(engine.began.wait, 60)
        # all of this happens during the pass
        other = asyncio.create_task(scheduler.admitted(admission("b", [2], 10, 1.0)).__aenter__())
        await asyncio.sleep(0)
        assert not verdict.done()
        engine.go_on.set()
        assert (await verdict).verdict.tokens == (following(1),)
        await other
    assert threading.current_thread().name not in engine.threads
    assert len(engine.threads) == 1
