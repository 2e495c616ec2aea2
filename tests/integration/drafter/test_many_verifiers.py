"""One drafter and two verifiers over gRPC, one of which requests as many drafts as it can."""

import asyncio
from collections import Counter
from collections.abc import Iterable

import pytest

from drafter_service.sessions.drafter import ScheduledSession
from drafter_service.sessions.step_plan import StepPlanner, Wanting
from specdec.engine import NativeEngine
from specdec.protos.drafter.v1 import drafter_pb2 as pb
from tests.integration.drafter.reference_drafts import received, reference
from tests.integration.drafter.served_drafter import Serve
from tests.integration.drafter.verifier_by_hand import PROMPT, Verifier, opening

pytestmark = pytest.mark.integration

_ROOM = 4
"""Number of sessions that get a token in one step."""
_GAMMA = 4
_ROUNDS = 6


class Steps:
    """Sessions that needed one token in each step, and those that got it, by verifier."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[tuple[Counter[str], Counter[str]]] = []
        plan = StepPlanner.plan

        def noted(planner: StepPlanner, wanting: Iterable[Wanting]) -> list[ScheduledSession]:
            wants = list(wanting)
            ready = {each.session: each.verifier for each in wants if each.pending == 1 and each.session.verifier_waits}
            batch = plan(planner, wants)
            got = Counter(ready[each.session] for each in batch if each.session in ready)
            self.made.append((Counter(ready.values()), got))
            return batch

        monkeypatch.setattr(StepPlanner, "plan", noted)


async def test_a_flooding_verifier_takes_no_step_from_another(
    serve: Serve, engine: NativeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other verifier gets its sessions into every step in which they need a token, as if it were alone."""
    steps = Steps(monkeypatch)
    async with (
        serve(step_sessions=_ROOM) as service,
        service.verifier("flood") as flood,
        service.verifier("modest") as modest,
    ):
        await flood.open(*(opening(f"{number}", gamma=40) for number in range(24)))
        flooding = asyncio.create_task(_flood(flood))
        await _until_it_fills(steps)
        await modest.open(opening("a"), opening("b"))
        for round_number in range(_ROUNDS):
            for name in "ab":
                drafts = received(await modest.drafts(name, _GAMMA, skip=round_number * _GAMMA))
                if not round_number:
                    assert drafts == reference(engine, _GAMMA)
                await modest.commit(name, len(PROMPT) + round_number, [3])
        flooding.cancel()
    contended = [(wants, got) for wants, got in steps.made if wants["flood"] >= _ROOM and wants["modest"]]
    assert len(contended) >= _GAMMA
    assert all(got["modest"] == wants["modest"] <= 2 for wants, got in contended)
    assert all(got["flood"] == _ROOM - wants["modest"] for wants, got in contended)
    assert max(sum(got.values()) for _, got in steps.made) == _ROOM


async def _until_it_fills(steps: Steps) -> None:
    """Wait until the flooding verifier has all places of a step."""
    async with asyncio.timeout(60):
        while not any(got["flood"] == _ROOM for _, got in steps.made):  # noqa: ASYNC110 - another thread makes steps
            await asyncio.sleep(0.01)


async def _flood(verifier: Verifier) -> None:
    """Reopen each session at once when its drafts arrive."""
    while True:
        frame = await verifier.read()
        again = {draft.session_id for draft in frame.drafts}
        await verifier.send(pb.DraftRequest(opens=[opening(name, gamma=40) for name in sorted(again)]))


async def test_a_verifier_with_all_sessions_gives_back_those_that_another_wants(
    serve: Serve, engine: NativeEngine
) -> None:
    async with (
        serve(max_sessions=6, max_sessions_per_verifier=6) as service,
        service.verifier("flood") as flood,
        service.verifier("modest") as modest,
    ):
        await flood.open(*(opening(f"{number}") for number in range(6)))
        await flood.drafts("5", _GAMMA)
        await modest.open(*(opening(name) for name in "abc"))
        for name in "abc":
            assert received(await modest.drafts(name, _GAMMA)) == reference(engine, _GAMMA)
        await flood.until(lambda: len(flood.nacks) == 3)
        assert {reason for _, reason in flood.nacks} == {pb.Nack.REASON_OVERLOADED}
        await flood.open(opening("more"))
        await flood.until(lambda: len(flood.nacks) == 4)
        assert not modest.nacks
        assert await service.metric("specdec_drafter_sessions") == 6
