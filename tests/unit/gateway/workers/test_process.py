"""A worker answers, is killed when it is late, and is replaced for the next request."""

import asyncio
from pathlib import Path

import pytest

from gateway.workers.process import WorkerLate, WorkerLost, WorkerProcess

ECHO = "tests.unit.gateway.workers.echo"


async def test_a_worker_answers_and_one_that_is_late_or_dies_is_replaced() -> None:
    worker = WorkerProcess(ECHO)
    try:
        assert await worker.ask(b"a" * 300_000, 60) == b"a" * 300_000
        with pytest.raises(WorkerLate):
            await worker.ask(b"sleep", 0.1)
        with pytest.raises(WorkerLost, match="exit status 1"):
            await worker.ask(b"die", 60)
        assert await worker.ask(b"b", 60) == b"b"
    finally:
        await worker.close()


@pytest.mark.parametrize("killed", [b"fork", b"worker"])
async def test_a_question_is_asked_again_after_a_crash(tmp_path: Path, killed: bytes) -> None:
    worker = WorkerProcess(ECHO)
    question = b"once %b %b" % (bytes(tmp_path / "made"), killed)
    try:
        assert await worker.ask(question, 60) == question
    finally:
        await worker.close()


async def test_an_answer_that_nobody_waits_for_is_not_that_of_the_next_question() -> None:
    worker = WorkerProcess(ECHO)
    try:
        leaving = asyncio.create_task(worker.ask(b"a", 60))
        await asyncio.sleep(0.01)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        assert await worker.ask(b"b", 60) == b"b"
    finally:
        await worker.close()


async def test_a_worker_waiting_for_a_processor_has_more_time() -> None:
    worker = WorkerProcess(ECHO)
    try:
        assert await worker.ask(b"wait", 0.2) == b"wait"
        with pytest.raises(WorkerLate):
            await worker.ask(b"compute", 0.2)
    finally:
        await worker.close()
