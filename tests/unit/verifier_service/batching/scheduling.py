"""A scheduler that runs, with rows to submit."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from specdec.serving.settings import ModelSettings
from tests.unit.verifier_service.verifier_fakes import TableEngine, make_metrics, make_row, make_speculation
from verifier_service.batching.batch_plan import Row
from verifier_service.batching.model_thread import ModelThread
from verifier_service.batching.scheduler import Scheduler
from verifier_service.config import VerifierSettings
from verifier_service.metrics import VerifierMetrics


@asynccontextmanager
async def scheduling(
    engine: TableEngine,
    max_waiting: int = 8,
    draft_tokens: int = 1000,
    step_sessions: int | None = None,
    groups: int = 1,
    chunk_tokens: int = 16,
    metrics: VerifierMetrics | None = None,
) -> AsyncIterator[Scheduler]:
    settings = VerifierSettings(
        model=ModelSettings(path=Path("model")),
        max_waiting=max_waiting,
        chunk_tokens=chunk_tokens,
        draft_tokens=draft_tokens,
        step_sessions=step_sessions,
    )
    with ThreadPoolExecutor(1) as thread:
        model, speculation = ModelThread(engine, settings), make_speculation(groups=groups)
        scheduler = Scheduler(model, thread, settings, speculation, metrics or make_metrics())
        running = asyncio.create_task(scheduler.run())
        try:
            yield scheduler
        finally:
            running.cancel()
            await asyncio.wait([running])


def row(session: str) -> Row:
    return make_row(session, (3,))


def admitted(scheduler: Scheduler, session: str, tokens: int, limit: int = 10) -> AbstractAsyncContextManager[None]:
    return scheduler.admitted(make_row(session, range(tokens), 0, limit=limit))


async def steps(count: int = 20) -> None:
    """Let the loop and the thread work."""
    for _ in range(count):
        await asyncio.sleep(0.001)
