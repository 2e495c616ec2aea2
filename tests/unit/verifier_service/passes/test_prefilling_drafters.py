"""Rounds in which drafters read the sessions do not count as evidence about drafts."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from specdec.planning.allotment import RoundSeconds
from tests.unit.verifier_service.passes.scheduling import admitted, scheduling
from tests.unit.verifier_service.speculation.simulated_batch import SimulatedBatch
from tests.unit.verifier_service.verifier_fakes import TableEngine, make_row
from verifier_service.speculation.costs import DrafterTimes, PassSample


@pytest.mark.parametrize("reading", [0, 20, 100])
def test_drafts_are_found_to_pay_however_long_drafters_prefill_first(reading: int) -> None:
    """Drafts of a new source are expected to give 0.9 of plain decoding, and give 1.3."""
    costs, told = RoundSeconds(0.030, 0.00075, 0.0, 0.018), DrafterTimes(0.018)
    batch = SimulatedBatch([0.99] * 16, costs, told=told, reading=reading)
    batch.run(150)
    assert batch.speculation.report().measured == pytest.approx(1.28, abs=0.03)
    assert min(batch.gammas) > 1


async def test_a_pass_tells_of_how_many_sessions_the_drafters_still_read(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = list[PassSample]()
    async with scheduling(TableEngine()) as scheduler, AsyncExitStack() as stack:
        for name in "abc":
            await stack.enter_async_context(admitted(scheduler, name, 1))
        monkeypatch.setattr(scheduler.engine_loop._speculation, "passed", samples.append)
        rows = [replace(make_row(name, (1,)), prefilling=name != "a") for name in "abc"]
        await asyncio.gather(*map(scheduler.verify, rows))
    assert [each.prefilling for each in samples] == [2]
