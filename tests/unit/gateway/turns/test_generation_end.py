"""Early ends of a generation, and the resources held until then: its place, its session and its lease."""

import asyncio
from contextlib import aclosing

import pytest

from gateway.config import AdmissionSettings
from gateway.request import TextPrompt
from gateway.turns.events import Started
from specdec.errors import (
    ContextLengthExceeded,
    DeadlineExceeded,
    Draining,
    QueueFull,
)
from tests.support.gateway_fakes import (
    CONTEXT,
    Script,
    ScriptedVerifier,
    until,
)
from tests.unit.gateway.turns.generation_stage import Stage, ask, end_of, text_of


async def test_a_leaving_caller_cancels_the_verifier_and_releases_the_session() -> None:
    verifier = ScriptedVerifier(script=Script(pause=0.05))
    stage = Stage(verifier)
    await stage.pool.probe()
    events = stage.generator.stream(ask())
    async with aclosing(events):
        await anext(events)
        await anext(events)
    await until(lambda: verifier.cancelled == 1)
    assert stage.store.journal == ["open", "acquire", "commit", "release"]
    assert stage.store.only.owner == ""
    assert stage.store.only.finish == ""


async def test_a_cancelled_task_cancels_the_verifier_and_gives_the_session_back() -> None:
    verifier = ScriptedVerifier(script=Script(pause=3600))
    stage = Stage(verifier)
    task = asyncio.create_task(stage.run())
    await until(lambda: verifier.calls)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: verifier.cancelled == 1)
    assert stage.store.journal[-1] == "release"


async def test_a_generation_keeps_its_place_until_it_ends_even_without_a_reader() -> None:
    verifier = ScriptedVerifier(script=Script(pause=3600))
    stage = Stage(verifier, admission=AdmissionSettings(running=16, seconds=0.02), grace=3600)
    streams = [stage.stream(prompt=TextPrompt(str(number))) for number in range(9)]
    for events in streams:
        await anext(events)
        await events.aclose()
    with pytest.raises(QueueFull):
        await stage.run()
    assert len(verifier.calls) == 9
    await stage.services.broadcasts.close()
    verifier.script = Script()
    assert text_of(await stage.run()) == "Hello, world."


async def test_a_prompt_that_cannot_fit_does_not_wait_to_be_let_in() -> None:
    stage = Stage(admission=AdmissionSettings(running=16))
    held = [stage.services.generations.take("t") for _ in range(16)]
    with pytest.raises(ContextLengthExceeded):
        await stage.run(prompt=TextPrompt("x" * CONTEXT * 2))
    for place in held:
        place.leave()


async def test_a_slow_round_keeps_the_lease() -> None:
    verifier = ScriptedVerifier(script=Script(pause=0.05))
    stage = Stage(verifier, lease=0.03)
    await stage.run()
    assert "renew" in stage.store.journal


async def test_a_session_that_is_cancelled_elsewhere_ends_with_what_is_committed() -> None:
    stage = Stage()
    events = []
    async for event in stage.stream():
        events.append(event)
        if isinstance(event, Started):
            stage.store.only.cancelled = True
    assert text_of(events) == "Hell"
    assert end_of(events).completion_tokens == 4
    assert stage.store.only.finish == "stop"


async def test_a_cancel_reaches_a_turn_whose_round_does_not_come() -> None:
    verifier = ScriptedVerifier(script=Script(pause=3600))
    stage = Stage(verifier, lease=0.03)
    events = []
    async for event in stage.stream():
        events.append(event)
        stage.store.only.cancelled = True
    assert end_of(events).completion_tokens == 0
    await until(lambda: verifier.cancelled == 1)
    assert stage.store.only.finish == "stop"


async def test_a_cancel_does_not_wait_for_the_lease() -> None:
    verifier = ScriptedVerifier(script=Script(pause=3600))
    stage = Stage(verifier, lease=3600.0)
    events = []
    async for event in stage.stream():
        events.append(event)
        (session_id,) = stage.store.sessions
        await stage.store.cancel(session_id, stage.store.only.tenant, 1)
    assert end_of(events).completion_tokens == 0
    assert stage.store.only.finish == "stop"


async def test_a_deadline_that_has_passed_ends_the_generation() -> None:
    with pytest.raises(DeadlineExceeded):
        await Stage().run(timeout=0.0)


async def test_a_closed_gate_lets_nothing_in_and_an_expired_one_ends_what_runs() -> None:
    stage = Stage(ScriptedVerifier(script=Script(pause=0.05)))
    events = stage.stream()
    await anext(events)
    stage.drain.close()
    assert await stage.drain.wait(0.0) is False
    await anext(events)
    with pytest.raises(Draining):
        await anext(events)
    with pytest.raises(Draining):
        await stage.run()
    assert await stage.drain.wait(1.0) is True
