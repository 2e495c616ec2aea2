"""A check of sessions in two groups that the real scheduler lets take turns: every verdict is on the row it is for."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

from specdec.serving.settings import ModelSettings
from tests.conformance.checks.check import Check, count
from tests.conformance.model_folders import root
from tests.unit.verifier_service.verifier_fakes import (
    TableEngine,
    following,
    make_metrics,
    make_row,
    make_speculation,
    point_mass,
)
from verifier_service.batching.batch_plan import Gathers
from verifier_service.batching.model_thread import ModelThread
from verifier_service.batching.scheduler import Scheduler
from verifier_service.config import VerifierSettings

SESSIONS = 8
ROUNDS = 6
LIMIT = 64


def strayed_tokens() -> float:
    """Tokens that are not the target's, and 1 more where no pass was of half of the sessions."""
    engine = TableEngine()
    strayed = asyncio.run(_serve(engine))
    return strayed + (SESSIONS // 2 not in map(len, engine.batches))


async def _serve(engine: TableEngine) -> int:
    settings = VerifierSettings(model=ModelSettings(path=root()))
    with ThreadPoolExecutor(1) as thread:
        scheduler = Scheduler(
            ModelThread(engine, settings), thread, settings, make_speculation(groups=2), make_metrics()
        )
        running = asyncio.create_task(scheduler.run())
        try:
            return sum(await asyncio.gather(*(_strayed(scheduler, number) for number in range(SESSIONS))))
        finally:
            running.cancel()
            await asyncio.wait([running])


async def _strayed(scheduler: Scheduler, number: int) -> int:
    """Tokens of one session that do not follow those before them."""
    name, tokens = f"s{number}", [number]
    async with scheduler.admitted(make_row(name, tuple(tokens), 0, limit=LIMIT)):
        for _ in range(ROUNDS):
            with scheduler.expected(Gathers.ALWAYS, hurry=lambda: None):
                await asyncio.sleep(0)
            draft = point_mass(following(tokens[-1]))
            outcome = await scheduler.verify(make_row(name, tuple(tokens), draft=draft, limit=LIMIT))
            tokens += outcome.verdict.tokens
    return sum(after != following(before) for before, after in pairwise(tokens))


CHECKS: tuple[Check, ...] = (count("verdicts of two groups", strayed_tokens),)
