"""A turn runner owns its turn, commits every round before it is shown, and ends where it is cancelled."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from gateway.turns.services import Services
from gateway.turns.transcript import Transcript
from gateway.turns.turn_runner import TurnRunner, until_set
from specdec.errors import Fenced, NoVerifier, SessionHeld
from specdec.rules.params import FinishReason
from tests.gateway_fakes import Script, ScriptedVerifier, output
from tests.unit.gateway.turns.in_memory import PROMPT, TURN, header, open_turn, services

FOREVER = float("inf")


async def runner(made: Services, stop: tuple[str, ...] = ()) -> tuple[TurnRunner, Transcript]:
    if not made.sessions.sessions:
        await open_turn(made.sessions, header(stop))
    await made.models.first.pool.probe()
    transcript = Transcript(TURN, header(stop), made.models.first.tokenizer.decode)
    return TurnRunner(made, transcript, FOREVER), transcript


async def test_every_round_is_in_the_store_before_it_is_shown() -> None:
    made = services()
    run, transcript = await runner(made)
    async for shown in run.rounds():
        assert len(made.sessions.only.tokens) == len(PROMPT) + shown.committed
    assert made.sessions.only.tokens == [*PROMPT, *output(Script())] == transcript.tokens
    assert (made.sessions.only.finish, transcript.finish) == ("stop", FinishReason.STOP)


async def test_the_call_has_the_committed_tokens_and_an_epoch_of_its_own_after_a_loss() -> None:
    first, second = ScriptedVerifier("a:1"), ScriptedVerifier("b:1")
    first.failures = second.failures = [(1, NoVerifier("lost"))]
    run, _ = await runner(services(first, second))
    assert [shown.committed async for shown in run.rounds()][-1] == len(output(Script()))
    before, after = sorted([*first.calls, *second.calls], key=lambda call: call.epoch)
    assert (before.epoch, after.epoch, before.session_id) == (1, 2, TURN.session_id)
    assert (before.tokens, after.tokens) == (PROMPT, (*PROMPT, *output(Script())[:4]))
    assert before.prompt_len == after.prompt_len == len(PROMPT)


async def test_another_owner_is_found_before_a_verifier_is_called() -> None:
    verifier = ScriptedVerifier()
    made = services(verifier)
    run, _ = await runner(made)
    await made.sessions.acquire(TURN.session_id, "another")
    with pytest.raises(SessionHeld):
        await anext(run.rounds())
    assert verifier.calls == []


async def test_a_log_that_is_longer_than_the_transcript_is_anothers() -> None:
    made = services()
    run, _ = await runner(made)
    made.sessions.only.tokens += [65]
    with pytest.raises(Fenced):
        await anext(run.rounds())
    assert made.sessions.journal[-1] == "release"


async def test_a_cancel_ends_the_turn_behind_the_round_that_was_committed() -> None:
    verifier = ScriptedVerifier()
    made = services(verifier)
    run, transcript = await runner(made)
    made.sessions.only.cancelled = True
    shown = [each async for each in run.rounds()]
    assert [each.committed for each in shown] == [4, 4]
    assert (transcript.finish, made.sessions.only.finish, verifier.cancelled) == (FinishReason.STOP, "stop", 1)


async def test_a_runner_that_is_closed_early_releases_the_turn() -> None:
    verifier = ScriptedVerifier()
    made = services(verifier)
    run, _ = await runner(made)
    async with aclosing(run.rounds()) as rounds:
        await anext(rounds)
    assert (made.sessions.only.owner, made.sessions.only.finish, verifier.cancelled) == ("", "", 1)


async def test_all_items_come_and_their_error_too() -> None:
    async def items() -> AsyncGenerator[int]:
        yield 1
        yield 2
        raise ValueError("after two")

    wanted = until_set(items(), asyncio.Event())
    assert [await anext(wanted), await anext(wanted)] == [1, 2]
    with pytest.raises(ValueError, match="after two"):
        await anext(wanted)


async def test_the_word_ends_what_is_waited_for() -> None:
    closed, word = [], asyncio.Event()

    async def items() -> AsyncGenerator[int]:
        try:
            yield 1
            word.set()
            await asyncio.sleep(3600)
            yield 2
        finally:
            closed.append(True)

    assert [item async for item in until_set(items(), word)] == [1]
    assert closed == [True]


async def test_whoever_is_cancelled_while_waiting_leaves_nothing_behind() -> None:
    waiting, closed = asyncio.Event(), []

    async def items() -> AsyncGenerator[int]:
        try:
            waiting.set()
            await asyncio.sleep(3600)
            yield 1
        finally:
            closed.append(True)

    before = asyncio.all_tasks()
    task = asyncio.create_task(anext(until_set(items(), asyncio.Event())))
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed == [True]
    assert asyncio.all_tasks() == before
