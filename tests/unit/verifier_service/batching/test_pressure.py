"""Many sessions over little memory: nothing is lost, nobody starves, and the loop stays free."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import pytest
from torch import Tensor

from specdec.engine import Chunk
from specdec.rules.draft import NO_DRAFT
from specdec.rules.params import Mode
from tests.unit.verifier_service.fakes import (
    GREEDY,
    VOCABULARY,
    TableEngine,
    continuation,
    following,
    make_metrics,
    point_mass,
)
from verifier_service.batching.batch_plan import Budget, KvRequest, Row
from verifier_service.batching.costs import PassCost
from verifier_service.batching.scheduler import Scheduler
from verifier_service.metrics import Metrics


@asynccontextmanager
async def scheduling(engine: TableEngine, metrics: Metrics, chunk_tokens: int = 4) -> AsyncIterator[Scheduler]:
    with ThreadPoolExecutor(1) as thread:
        scheduler = Scheduler(engine, thread, Budget(chunk_tokens, 1000), 64, PassCost(), metrics)
        running = asyncio.create_task(scheduler.run())
        try:
            yield scheduler
        finally:
            running.cancel()
            await asyncio.wait([running])


async def generate(
    scheduler: Scheduler, claim: KvRequest, prompt: Sequence[int], drafted: int = 0, pause: float = 0.0
) -> list[int]:
    """Every token up to the limit, with drafts whose last is wrong."""
    tokens = list(prompt)
    async with scheduler.seat(claim, tokens):
        while len(tokens) < claim.limit:
            gamma = min(drafted, claim.limit - len(tokens) - 1)
            truth = continuation(tokens[-1], gamma)
            draft = point_mass(*truth[:-1], (truth[-1] + 1) % VOCABULARY) if gamma else NO_DRAFT
            outcome = await scheduler.verify(Row(claim.session, tokens, Mode.REJECTION, GREEDY, draft))
            tokens += outcome.verdict.tokens
            if pause:
                await asyncio.sleep(pause)
    return tokens


def counted(metrics: Metrics) -> float:
    return float(metrics.preemptions._value.get())


@pytest.mark.parametrize("drafted", [0, 3])
async def test_sessions_that_lose_their_kv_say_what_they_would_have_said(drafted: int) -> None:
    engine, metrics = TableEngine(room=40), make_metrics()
    prompts = [[(5 * number + index) % VOCABULARY for index in range(3 + number)] for number in range(6)]
    async with scheduling(engine, metrics) as scheduler, asyncio.timeout(60):
        outputs = await asyncio.gather(
            *(
                generate(
                    scheduler, KvRequest(f"s{number}", 30, float(number)), prompt, drafted, pause=number % 2 * 1e-4
                )
                for number, prompt in enumerate(prompts)
            )
        )
        async with scheduler.seat(KvRequest("next", 1, 0.0), [1]):
            assert engine.held == {"next": 1}
    for prompt, tokens in zip(prompts, outputs, strict=True):
        assert tokens == [*prompt, *continuation(prompt[-1], 30 - len(prompt))]
    assert counted(metrics) > 0


async def test_the_last_in_rank_gives_up_its_kv_and_the_first_never_does() -> None:
    engine, metrics = TableEngine(room=40), make_metrics()
    ended: list[str] = []

    async def run(name: str, rank: float) -> None:
        await generate(scheduler, KvRequest(name, 30, rank), [1, 2, 3])
        ended.append(name)

    async with scheduling(engine, metrics) as scheduler, asyncio.timeout(60):
        await asyncio.gather(run("last", 9.0), run("first", 1.0), run("middle", 5.0))
    assert ended == ["first", "middle", "last"]
    prompts = [chunk.session for batch in engine.batches for chunk in batch if len(chunk.tokens) > 1]
    assert prompts.count("first") == 1
    assert prompts.count("last") > 1


async def test_who_comes_first_in_rank_is_let_in_first() -> None:
    engine = TableEngine(room=10)
    entered: list[str] = []

    async def sit(name: str, rank: float) -> None:
        async with scheduler.seat(KvRequest(name, 10, rank), range(8)):
            entered.append(name)

    async with scheduling(engine, make_metrics()) as scheduler, asyncio.timeout(60):
        async with scheduler.seat(KvRequest("inside", 10, 0.0), range(8)):
            waiting = [asyncio.create_task(sit(name, rank)) for name, rank in (("low", 60.0), ("high", -60.0))]
            await asyncio.sleep(0.01)
        await asyncio.gather(*waiting)
    assert entered == ["high", "low"]


async def test_a_caller_that_stops_asking_keeps_nobody_out() -> None:
    engine = TableEngine(room=10)
    stalled = KvRequest("stalled", 10, 0.0)
    async with scheduling(engine, make_metrics()) as scheduler, scheduler.seat(stalled, range(8)), asyncio.timeout(60):
        assert await generate(scheduler, KvRequest("next", 10, 1.0), [1]) == [1, *continuation(1, 9)]
        again = await scheduler.verify(Row("stalled", [1, 2, 3], Mode.OFF, GREEDY))
        assert again.verdict.tokens == (following(3),)


async def test_sessions_that_decode_take_part_in_every_pass_of_a_long_prompt() -> None:
    engine = TableEngine()
    async with scheduling(engine, make_metrics()) as scheduler, asyncio.timeout(60):
        decoding = asyncio.create_task(generate(scheduler, KvRequest("decoding", 200, 0.0), [1]))
        await asyncio.sleep(0.01)
        async with scheduler.seat(KvRequest("long", 200, 1.0), range(150)):
            before = len(engine.batches)
            await scheduler.prefill("long", [index % VOCABULARY for index in range(150)], 120)
            passes = engine.batches[before:]
        decoding.cancel()
        await asyncio.wait([decoding])
    prefilling = [batch for batch in passes if any(chunk.session == "long" for chunk in batch)]
    assert len(prefilling) == 120 // 4
    assert all({chunk.session for chunk in batch} == {"long", "decoding"} for batch in prefilling)
    assert all(len(chunk.tokens) <= 4 for batch in prefilling for chunk in batch)


async def test_a_right_to_kv_that_is_known_already_costs_no_pass() -> None:
    engine = TableEngine()
    async with scheduling(engine, make_metrics()) as scheduler, scheduler.seat(KvRequest("a", 10, 0.0), [1, 2, 3]):
        engine.kv["a"] = [1, 2]
        await scheduler.prefill("a", [1, 2, 3], 2)
        assert engine.batches == []


class SlowEngine(TableEngine):
    """A pass takes until the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.began, self.go_on = threading.Event(), threading.Event()
        self.threads: set[str] = set()

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        self.threads.add(threading.current_thread().name)
        self.began.set()
        assert self.go_on.wait(60)
        return super().forward(chunks)


async def test_the_loop_is_free_while_a_pass_runs_and_the_model_has_a_thread_of_its_own() -> None:
    engine = SlowEngine()
    async with scheduling(engine, make_metrics()) as scheduler, scheduler.seat(KvRequest("a", 10, 0.0), [1]):
        verdict = asyncio.create_task(scheduler.verify(Row("a", [1], Mode.OFF, GREEDY)))
        assert await asyncio.to_thread(engine.began.wait, 60)
        # All of this happens inside the pass.
        other = asyncio.create_task(scheduler.seat(KvRequest("b", 10, 1.0), [2]).__aenter__())
        await asyncio.sleep(0)
        assert not verdict.done()
        engine.go_on.set()
        assert (await verdict).verdict.tokens == (following(1),)
        await other
    assert threading.current_thread().name not in engine.threads
    assert len(engine.threads) == 1
