"""A turn runner owns its turn, commits every round before showing it, and ends on cancellation."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from gateway.tasks import cancel_and_wait
from gateway.turns.events import OutputRound
from gateway.turns.services import Services
from gateway.turns.transcript import Transcript
from gateway.turns.turn_runner import UNLIMITED, WINDOW, TurnOutput, TurnRunner
from gateway.verifiers.round_streams import HELD_TOKENS
from specdec.errors import Fenced, NoVerifier, SessionHeld
from specdec.sampling.params import FinishReason
from tests.support.debug_logs import debug_logs
from tests.support.gateway_fakes import Script, ScriptedVerifier, output, until
from tests.unit.gateway.turns.in_memory import PROMPT, TURN, header, open_turn, services

FOREVER = float("inf")


class Runner(TurnRunner):
    """A runner of TURN and the events that it publishes."""

    def __init__(
        self, made: Services, seen: Callable[[OutputRound], object] = lambda shown: None, stop: Sequence[str] = ()
    ) -> None:
        self.transcript = Transcript(TURN, header(stop), made.models.first.tokenizer.decode)
        self.shown: list[OutputRound] = []
        self._seen = seen
        super().__init__(made, self.transcript, FOREVER, self._take)

    def _take(self, shown: OutputRound) -> None:
        self.shown.append(shown)
        self._seen(shown)


async def opened(*verifiers: ScriptedVerifier) -> Services:
    made = services(*verifiers)
    await open_turn(made.sessions, header())
    await made.models.first.pool.probe()
    return made


async def test_every_round_is_in_the_store_before_it_is_shown() -> None:
    made, stored = await opened(), []
    run = Runner(made, lambda shown: stored.append(len(made.sessions.only.tokens) - len(PROMPT) - shown.committed))
    await run.run()
    assert stored == [0] * len(run.shown)
    assert made.sessions.only.tokens == [*PROMPT, *output(Script())] == run.transcript.tokens
    assert (made.sessions.only.finish, run.transcript.finish) == ("stop", FinishReason.STOP)


@pytest.mark.parametrize(
    ("at_end", "stop", "commits"), [(True, (), 2), (True, ("none",), 4), (False, (), 4)], ids=["end", "stop", "live"]
)
async def test_rounds_that_nobody_waits_for_share_a_commit(at_end: bool, stop: tuple[str, ...], commits: int) -> None:
    made = await opened(ScriptedVerifier(script=Script(pause=0.01)))
    run: Runner = Runner(made, lambda shown: run.reader_is_at(shown.committed, at_end=at_end), stop)
    await run.run()
    assert [each.committed for each in run.shown] == [4, 8, 12, 14]
    assert made.sessions.journal.count("commit") == commits  # the first round does not wait


def test_a_held_generation_does_not_wait_for_its_commits() -> None:
    """One that is held may be several commits ahead, since its rounds are committed in groups; a read one may not."""
    transcript = Transcript(TURN, header(), services().models.first.tokenizer.decode)
    output_of = TurnOutput(transcript, lambda shown: None, read=10)
    assert output_of.credit == len(PROMPT) + 10 + WINDOW
    output_of.held = True
    assert output_of.credit >= len(PROMPT) + 10 + 4 * HELD_TOKENS
    output_of.read = None
    assert output_of.credit == UNLIMITED


async def test_after_a_loss_the_call_has_the_committed_tokens_and_a_new_epoch() -> None:
    first, second = ScriptedVerifier("a:1"), ScriptedVerifier("b:1")
    first.failures = second.failures = [(1, NoVerifier("lost"))]
    run = Runner(await opened(first, second))
    await run.run()
    assert run.shown[-1].committed == len(output(Script()))
    before, after = sorted([*first.calls, *second.calls], key=lambda call: call.epoch)
    assert (before.epoch, after.epoch, before.session_id) == (1, 2, TURN.session_id)
    assert (before.tokens, after.tokens) == (PROMPT, (*PROMPT, *output(Script())[:4]))
    assert before.prompt_len == after.prompt_len == len(PROMPT)


async def test_each_attempt_is_logged_with_its_verifier() -> None:
    first, second = ScriptedVerifier("a:1"), ScriptedVerifier("b:1")
    first.failures = second.failures = [(1, NoVerifier("lost"))]
    with debug_logs() as logs:
        await Runner(await opened(first, second)).run()
    attempts = [each for each in logs if each["event"] == "attempt_began"]
    assert [(each["generation"], each["epoch"]) for each in attempts] == [(TURN.name, 1), (TURN.name, 2)]
    assert {each["verifier"] for each in attempts} == {"a:1", "b:1"}
    assert [each["committed"] for each in attempts] == [len(PROMPT), len(PROMPT) + 4]


async def test_another_owner_is_found_before_a_verifier_is_called() -> None:
    verifier = ScriptedVerifier()
    made = await opened(verifier)
    await made.sessions.acquire(TURN.session_id, "another")
    with pytest.raises(SessionHeld):
        await Runner(made).run()
    assert verifier.calls == []


async def test_a_log_that_is_longer_than_the_transcript_is_anothers() -> None:
    made = await opened()
    made.sessions.only.tokens += [65]
    with pytest.raises(Fenced):
        await Runner(made).run()
    assert made.sessions.journal[-1] == "release"


async def test_a_cancel_ends_the_turn_after_the_round_that_was_committed() -> None:
    verifier = ScriptedVerifier(script=Script(pause=0.05))
    made = await opened(verifier)
    run = Runner(made)
    made.sessions.only.cancelled = True
    await run.run()
    assert [each.committed for each in run.shown] == [4, 4]
    await until(lambda: verifier.cancelled)
    assert (run.transcript.finish, made.sessions.only.finish, verifier.cancelled) == (FinishReason.STOP, "stop", 1)


async def test_a_cancel_ends_the_wait_for_a_verifier() -> None:
    made = await opened()
    run = Runner(made)
    made.models.first.pool.replace((), ScriptedVerifier)  # type: ignore[arg-type]
    running = asyncio.create_task(run.run())
    await until(lambda: made.sessions.only.owner)
    await made.sessions.cancel(TURN.session_id, TURN.tenant, TURN.number)
    await running
    assert (made.sessions.only.finish, [each.committed for each in run.shown]) == ("stop", [0])


async def test_a_runner_that_is_cancelled_releases_the_turn_and_its_generation() -> None:
    verifier = ScriptedVerifier(script=Script(pause=0.02))
    made, first = await opened(verifier), asyncio.Event()
    running = asyncio.create_task(Runner(made, lambda shown: first.set()).run())
    await first.wait()
    await cancel_and_wait(running)
    await until(lambda: verifier.cancelled)
    assert (made.sessions.only.owner, made.sessions.only.finish, verifier.cancelled) == ("", "", 1)
