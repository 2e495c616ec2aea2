"""Work is admitted up to a limit, waits for a while, and is refused by a typed error that is counted."""

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from gateway.admission import AT_ONCE, Admission, Places, RequestPlaces
from gateway.callers.caller import called_from, tenant_of
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


async def test_a_thousand_made_up_users_have_the_share_of_their_address() -> None:
    made, _ = admission(64, waiting=1000)
    entered: list[tuple[str, Places]] = []

    async def come(host: str, user: str) -> None:
        called_from(host)
        entered.append((host, await made.enter(tenant_of(user))))

    def leave(host: str) -> None:
        index = next(at for at, (each, _) in enumerate(entered) if each == host)
        entered.pop(index)[1].leave()

    def held(host: str) -> int:
        return sum(each == host for each, _ in entered)

    crowd = [asyncio.create_task(come("192.0.2.1", f"made up {each}")) for each in range(1000)]
    await asyncio.sleep(0)
    refused = [task for task in crowd if task.done() and isinstance(task.exception(), QueueFull)]
    assert held("192.0.2.1") <= 48, "3 in 4 of all places"
    assert len(refused) == 1000 - held("192.0.2.1") - 500, "half of the queue"
    others = [asyncio.create_task(come("192.0.2.2", "")) for _ in range(12)]
    await asyncio.sleep(0)
    assert held("192.0.2.2") == 12, "another address does not wait"
    more = [asyncio.create_task(come("192.0.2.3", f"honest {each}")) for each in range(20)]
    await asyncio.sleep(0)
    before, first = held("192.0.2.3"), held("192.0.2.1")
    for _ in range(8):
        leave("192.0.2.1")
        await asyncio.sleep(0)
    assert held("192.0.2.3") - before >= 4, "places that become free go to addresses in turn"
    assert held("192.0.2.1") <= first - 4
    for task in (*crowd, *others, *more):
        task.cancel()
    await asyncio.gather(*crowd, *others, *more, return_exceptions=True)


async def test_a_request_of_many_generations_runs_few_at_once_and_lets_others_in() -> None:
    made, registry = admission(AT_ONCE, waiting=1)
    own, ended, most, running = RequestPlaces(made, "a"), list[str](), 0, 0

    async def generation() -> None:
        nonlocal most, running
        async with own.place():
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1
        ended.append("a")

    async def other() -> None:
        with await made.enter("b"):
            ended.append("b")

    many = [asyncio.create_task(generation()) for _ in range(10 * AT_ONCE)]
    await asyncio.sleep(0)
    await asyncio.gather(*many, other())
    assert most == AT_ONCE
    assert ended.index("b") < 3 * AT_ONCE
    assert (len(ended), counted(registry, "refused_total")) == (10 * AT_ONCE + 1, 0)
