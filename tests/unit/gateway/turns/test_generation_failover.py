"""A generation whose verifiers are lost, full or wrong continues on another one, or ends with the reason."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from gateway.config import FailoverSettings
from specdec.errors import (
    NoVerifier,
    QueueFull,
)
from tests.support.gateway_fakes import (
    Script,
    ScriptedVerifier,
    output,
    until,
)
from tests.unit.gateway.turns.generation_stage import Stage, ids_of, text_of

LOST = NoVerifier("verifier was lost")


async def test_a_lost_verifier_is_replaced_and_nothing_is_lost_or_said_twice() -> None:
    first, second = ScriptedVerifier("a:1"), ScriptedVerifier("b:1")
    first.failures = second.failures = [(2, LOST)]
    stage = Stage(first, second)
    events = await stage.run()
    assert text_of(events) == "Hello, world."
    assert ids_of(events) == output(Script())
    calls = sorted([*first.calls, *second.calls], key=lambda call: call.epoch)
    assert [call.epoch for call in calls] == [1, 2]
    assert {len(first.calls), len(second.calls)} == {1}
    assert list(calls[1].tokens) == [*b"Say it", *output(Script())[:8]]
    assert calls[0].session_id == calls[1].session_id
    assert calls[1].prompt_len == 6
    assert stage.metrics.failovers._value.get() == 1


async def test_a_store_that_is_away_while_a_verifier_is_lost_is_waited_for() -> None:
    verifier = ScriptedVerifier()
    verifier.failures = [(1, LOST)]
    stage = Stage(verifier, store_patience=30.0)
    task = asyncio.create_task(stage.run())
    await until(lambda: stage.store.sessions and len(stage.store.only.tokens) > 6)
    stage.store.down = True
    await stage.pool.probe()
    await until(lambda: stage.store.refused)
    stage.store.down = False
    assert ids_of(await task) == output(Script())
    assert stage.store.only.tokens[6:] == output(Script())


async def test_a_verifier_that_ends_without_finishing_is_lost() -> None:
    class Cut(ScriptedVerifier):
        async def generate(self, call: Any, timeout: float) -> AsyncGenerator[Any]:
            async for verified in super().generate(call, timeout):
                yield verified
                if call.epoch == 1:
                    return

    stage = Stage(Cut("a:1"), Cut("b:1"))
    assert text_of(await stage.run()) == "Hello, world."


async def test_the_only_verifier_may_come_back() -> None:
    verifier = ScriptedVerifier()
    verifier.failures = [(1, LOST)]
    stage = Stage(verifier)

    async def come_back() -> None:
        await until(lambda: stage.pool.states["a:1"] == "unreachable")
        await stage.pool.probe()

    events, _ = await asyncio.gather(stage.run(), come_back())
    assert ids_of(events) == output(Script())


async def test_giving_up_on_verifiers_is_bounded_by_attempts() -> None:
    verifiers = [ScriptedVerifier(f"{name}:1") for name in "abcd"]
    for verifier in verifiers:
        verifier.failures = [(0, LOST)]
    stage = Stage(*verifiers, failover=FailoverSettings(attempts=2))
    with pytest.raises(NoVerifier):
        await stage.run()
    assert sum(len(verifier.calls) for verifier in verifiers) == 3


async def test_giving_up_on_verifiers_is_bounded_by_time() -> None:
    verifier = ScriptedVerifier()
    verifier.failures = [(1, LOST)]
    stage = Stage(verifier, failover=FailoverSettings(seconds=0.01))
    with pytest.raises(NoVerifier):
        await stage.run()
    assert stage.store.only.owner == ""


async def test_a_generation_never_moves_to_another_model() -> None:
    first, other = ScriptedVerifier("a:1"), ScriptedVerifier("b:1", Script(text="Something else."))
    stage = Stage(first, other, failover=FailoverSettings(seconds=0.01))
    other.facts = ScriptedVerifier().facts.__class__(
        **{name: getattr(other.facts, name) for name in other.facts.__slots__} | {"system_fingerprint": "fp_other"}
    )
    first.failures = other.failures = [(1, LOST)]
    with pytest.raises(NoVerifier):
        await stage.run()
    assert len(first.calls) + len(other.calls) == 1


async def test_a_full_verifier_is_passed_over_and_all_full_is_said() -> None:
    full = QueueFull("no room")
    first, second = ScriptedVerifier("a:1"), ScriptedVerifier("b:1")
    first.failures = second.failures = [(0, full)]
    assert text_of(await Stage(first, second).run()) == "Hello, world."
    first.failures, second.failures = [(0, full)], [(0, full)]
    stage = Stage(first, second)
    with pytest.raises(QueueFull):
        await stage.run()
    assert stage.pool.states == {"a:1": "ready", "b:1": "ready"}


async def test_a_round_out_of_place_is_never_committed() -> None:
    class Confused(ScriptedVerifier):
        async def generate(self, call: Any, timeout: float) -> AsyncGenerator[Any]:
            async for verified in super().generate(call, timeout):
                yield verified
                yield verified

    stage = Stage(Confused("a:1"), ScriptedVerifier("b:1"))
    assert text_of(await stage.run()) == "Hello, world."
    assert stage.store.only.tokens[6:] == output(Script())
