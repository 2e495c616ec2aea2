"""Work is admitted up to a limit, waits for a while, and is refused by a typed error that is counted."""

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from gateway.admission import Admission
from gateway.config import AdmissionSettings
from gateway.metrics import GatewayMetrics
from specdec.errors import QueueFull


def admission(places: int, **settings: float) -> tuple[Admission, CollectorRegistry]:
    registry = CollectorRegistry()
    return Admission("calls", places, AdmissionSettings(**settings), GatewayMetrics(registry)), registry  # type: ignore[arg-type]


def counted(registry: CollectorRegistry, name: str) -> float | None:
    return registry.get_sample_value(f"specdec_gateway_requests_{name}", {"kind": "calls"})


async def test_a_request_waits_for_a_place_and_is_refused_after_a_while() -> None:
    made, registry = admission(1, seconds=0.02)
    with await made.enter("a"):
        waiting = asyncio.create_task(made.enter("b"))
        await asyncio.sleep(0)
        assert counted(registry, "waiting") == 1
        with pytest.raises(QueueFull, match=r"0\.02 s"):
            await waiting
    assert (counted(registry, "waiting"), counted(registry, "refused_total")) == (0, 1)
    (await made.enter("b")).leave()


async def test_a_full_queue_refuses_at_once() -> None:
    made, registry = admission(1, waiting=1)
    with await made.enter("a") as entered:
        waiting = asyncio.create_task(made.enter("a"))
        await asyncio.sleep(0)
        with pytest.raises(QueueFull, match="too many calls"):
            await made.enter("b")
        entered.leave()
        (await waiting).leave()
    assert counted(registry, "refused_total") == 1
    (await made.enter("c")).leave()


async def test_places_are_given_back_once() -> None:
    made, _ = admission(2, seconds=0.01)
    first, second = await made.enter("a"), await made.enter("b")
    first.leave()
    first.leave()
    third = await made.enter("c")
    with pytest.raises(QueueFull):
        await made.enter("d")
    for place in (second, third, made.take("a")):
        place.leave()


async def test_nothing_waits_for_no_place() -> None:
    made, _ = admission(1)
    with made.take("a"), made.take("b"), await made.enter("c", 0):
        pass
