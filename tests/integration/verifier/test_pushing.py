"""A verifier requests pushed chains from a distant drafter and not from a near one, by round trips that it measures."""

import asyncio
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.systems.delay import DelayingProxy
from tests.integration.verifier.client import output
from tests.integration.verifier.draft_scripts import wrong
from tests.integration.verifier.house import House
from tests.integration.verifier.target import LENGTH, PROMPT, Target
from verifier_service.speculation.controller import BatchSpeculation
from verifier_service.speculation.costs import DraftedRounds

_PASS, _FAR = 0.2, 0.1
"""Assumed duration of the target's pass and of the long round trip, in seconds."""
_LIMIT = 0.1 * _PASS
"""Round trip that separates near from far drafters."""


def _round_trip(http: str) -> float:
    """Return the last round trip in seconds; 0 before the first."""
    with urllib.request.urlopen(f"http://{http}/metrics", timeout=10) as reply:
        families = text_string_to_metric_families(reply.read().decode())
    samples = (sample for family in families for sample in family.samples)
    return next((each.value for each in samples if each.name == "specdec_drafter_rtt_seconds"), 0.0)


@pytest.mark.parametrize(("round_trip", "outcomes"), [(_FAR, 8), (0.0, 0)])
async def test_only_a_far_drafter_is_asked_to_push(
    house: House, target: Target, http: str, monkeypatch: pytest.MonkeyPatch, round_trip: float, outcomes: int
) -> None:
    monkeypatch.setattr(BatchSpeculation, "rounds", lambda self, source: DraftedRounds(0.7, _PASS))
    drafter = await house.drafter(wrong, step_seconds=0.004, outcomes=16)
    with DelayingProxy(drafter.address) as network:
        network.round_trip = round_trip
        drafting = {"timeout": 5.0, "outcomes": "auto"}
        client = await house.verifier(network.address, http=http, drafting=drafting)
        async with asyncio.timeout(60.0):
            measured = 0.0
            while not measured or (measured < _LIMIT) is not (round_trip < _LIMIT):
                await asyncio.sleep(0.05)
                measured = await asyncio.to_thread(_round_trip, http)
        rounds = await client.rounds(gamma=4)
    assert output(rounds) == target.greedy(PROMPT, LENGTH)
    assert [opened.outcomes for opened in drafter.servicer.opens] == [outcomes]
