"""A turn stream sends every event once, wherever the rounds come from."""

import asyncio
import time
from collections.abc import Sequence

import pytest

from gateway.store.values import RoundCommit
from gateway.turns.events import Event, Finished, OutputRound, Started
from gateway.turns.services import Services
from gateway.turns.turn import Header, note_of
from gateway.turns.turn_stream import TurnStream
from specdec.errors import CursorAhead, DeadlineExceeded
from specdec.rules.speculation import Origin
from specdec.sampling.params import FinishReason
from specdec.wire.generation import Round
from tests.support.gateway_fakes import Script, ScriptedVerifier, drained, output, until
from tests.support.memory_sessions import MemorySessionStore
from tests.unit.gateway.turns.in_memory import PROMPT, TURN, events_of, header, open_turn, services


async def opened(*verifiers: ScriptedVerifier) -> Services:
    made = services(*verifiers)
    await open_turn(made.sessions, header())
    await made.models.first.pool.probe()
    return made


def stream(made: Services, head: Header | None = None, seconds: float = 60.0) -> TurnStream:
    return TurnStream(made, TURN, time.monotonic() + seconds, head)


async def commit(store: MemorySessionStore, epoch: int, base: int, text: bytes, finish: str = "") -> None:
    """Commit as another owner."""
    ended = FinishReason(finish) if finish else None
    written = Round(base_len=base, tokens=tuple(text), origins=(Origin.PLAIN,) * len(text), finish=ended)
    outcome = await store.commit(
        [RoundCommit(TURN.session_id, epoch, base, written.tokens, finish=finish, note=note_of(written))]
    )
    assert outcome == [False]


def text_of(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, OutputRound))


async def test_a_turn_that_was_opened_just_now_is_generated_without_reading_it() -> None:
    made = await opened()
    events = [event async for event in events_of(stream(made, header()))]
    assert (events[0], text_of(events)) == (Started(TURN, header()), "Hello, world.")
    assert isinstance(events[-1], Finished)
    assert "read" not in made.sessions.journal


async def test_a_turn_that_ended_is_read_back_with_the_same_events() -> None:
    verifier = ScriptedVerifier()
    made = await opened(verifier)
    live = [event async for event in events_of(stream(made, header()))]
    assert [event async for event in events_of(stream(made))] == live
    assert len(verifier.calls) == 1


async def test_rounds_of_another_owner_are_followed_and_its_turn_taken_over() -> None:
    verifier = ScriptedVerifier()
    made = await opened(verifier)
    store = made.sessions
    lease = await store.acquire(TURN.session_id, "another")
    events: list[Event] = []

    async def read() -> None:
        async for event in events_of(stream(made)):
            events.append(event)

    reading = asyncio.create_task(read())
    await commit(store, lease.epoch, len(PROMPT), b"He")
    await until(lambda: text_of(events) == "He")
    assert verifier.calls == []
    await store.release(TURN.session_id, lease.epoch)
    await reading
    assert text_of(events) == "Hello, world."
    assert verifier.calls[0].tokens == (*PROMPT, *b"He")


async def test_a_lost_turn_continues_with_the_new_owner_s_tokens_without_repeats() -> None:
    made = await opened(ScriptedVerifier(script=Script(text="abcdef", gamma=0, pause=0.05)))
    store, events = made.sessions, []
    async for event in events_of(stream(made, header())):
        events.append(event)
        if text_of(events) == "ab" and store.only.epoch == 1:
            store.only.owner = ""
            lease = await store.acquire(TURN.session_id, "thief")
            await commit(store, lease.epoch, len(PROMPT) + 2, b"!", "stop")
    assert text_of(events) == "ab!"
    assert [type(event) for event in events].count(Started) == 1


async def test_a_store_that_lost_rounds_that_were_shown_is_an_error() -> None:
    made = await opened(ScriptedVerifier(script=Script(text="abcdef", gamma=0, pause=0.05)))

    def lose(event: Event) -> None:
        if isinstance(event, OutputRound) and event.committed == 2:
            made.sessions.only.epoch += 1
            made.sessions.only.rounds.clear()

    with pytest.raises(CursorAhead):
        await drained(events_of(stream(made, header())), lose)


async def test_a_deadline_ends_the_wait_for_another_owner() -> None:
    made = await opened()
    await made.sessions.acquire(TURN.session_id, "another")
    with pytest.raises(DeadlineExceeded):
        [event async for event in events_of(stream(made, seconds=0.05))]


async def test_a_closed_stream_counts_as_cancelled_and_releases_the_turn() -> None:
    made = await opened()
    events = events_of(stream(made, header()))
    await anext(events)
    await anext(events)
    await events.aclose()
    assert made.metrics.cancellations.labels("client")._value.get() == 1
    assert (made.sessions.only.owner, made.sessions.only.finish) == ("", "")


async def test_the_end_has_the_reason_of_the_last_round() -> None:
    made = await opened(ScriptedVerifier(script=Script(text="x" * 100)))
    *_, last = [event async for event in events_of(stream(made, header()))]
    assert isinstance(last, Finished)
    assert (last.reason, last.completion_tokens) == (FinishReason.LENGTH, 50)
    assert len(output(Script())) < 50


async def test_other_work_runs_while_many_rounds_are_read_back() -> None:
    made, steps = await opened(), 0
    lease = await made.sessions.acquire(TURN.session_id, "another")
    for at in range(320):
        await commit(made.sessions, lease.epoch, len(PROMPT) + at, b"a", "length" if at == 319 else "")

    async def others() -> None:
        nonlocal steps
        while True:
            await asyncio.sleep(0)
            steps += 1

    events: list[Event] = []
    other = asyncio.create_task(others())
    await stream(made).run(events.append)
    other.cancel()
    assert len(events) == 322
    assert steps >= 15
