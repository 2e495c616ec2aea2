"""A generation goes on at another verifier where one is lost, as often and as long as the settings allow."""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence

import pytest
from prometheus_client import CollectorRegistry

from gateway.config import FailoverSettings
from gateway.metrics import GatewayMetrics
from gateway.verifiers.balancer import VerifierPool
from gateway.verifiers.failover import Failover
from gateway.verifiers.read_ahead import read_ahead
from specdec.errors import DeadlineExceeded, Draining, InternalError, NoVerifier, QueueFull, SpecdecError
from specdec.rules.params import Mode, SamplingParams, Speculation
from specdec.wire.generation import GenerationCall, Round
from tests.gateway_fakes import EOS, TOKENIZER_HASH, Script, ScriptedVerifier, knowing, output

PROMPT = tuple(b"Say it")


class Generation:
    """One generation whose rounds are committed as they come."""

    def __init__(self, *verifiers: ScriptedVerifier, pause: float = 0.0, **settings: float) -> None:
        """Each commit takes `pause` seconds."""
        self.tokens = list(PROMPT)
        self.commits = 0
        self._pause = pause
        self.epoch = 0
        metrics = GatewayMetrics(CollectorRegistry())
        self.pool = knowing(VerifierPool(TOKENIZER_HASH, metrics), *verifiers)
        self.failovers = metrics.failovers
        self._failover = Failover(self.pool, FailoverSettings(**({"seconds": 0.01} | settings)), metrics)

    async def next_call(self) -> GenerationCall:
        self.epoch += 1
        return GenerationCall(
            session_id="s",
            epoch=self.epoch,
            tokens=tuple(self.tokens),
            prompt_len=len(PROMPT),
            sampling=SamplingParams(),
            max_tokens=50,
            stop_token_ids=(EOS,),
            speculation=Speculation(Mode.REJECTION),
        )

    async def run(self, seconds: float = 60.0) -> list[int]:
        await self.pool.probe()
        verifier, info = self.pool.verifier_for("s")
        async for verified in self._failover.rounds(verifier, info, self.next_call, time.monotonic() + seconds):
            self.tokens += verified.tokens
            self.commits += 1
            await asyncio.sleep(self._pause)
        return self.tokens[len(PROMPT) :]


def verifiers(count: int, *failures: tuple[int, SpecdecError]) -> Sequence[ScriptedVerifier]:
    """Verifiers of which each fails its first calls in that way."""
    made = [ScriptedVerifier(f"{index}:1") for index in range(count)]
    for verifier in made:
        verifier.failures = list(failures)
    return made


@pytest.mark.parametrize("lost", [NoVerifier("lost"), Draining("shutting down")])
async def test_the_rest_is_asked_of_another_verifier_under_a_new_epoch(lost: SpecdecError) -> None:
    both = verifiers(2)
    both[0].failures = both[1].failures = [(2, lost)]
    generation = Generation(*both)
    assert await generation.run() == output(Script())
    before, after = sorted([*both[0].calls, *both[1].calls], key=lambda call: call.epoch)
    assert (len(both[0].calls), len(both[1].calls)) == (1, 1)
    assert list(after.tokens) == [*before.tokens, *output(Script())[:8]]
    assert generation.failovers._value.get() == 1
    assert sorted(generation.pool.states.values()) == ["ready", "unreachable"]


class ReadAhead(ScriptedVerifier):
    """One whose rounds are read ahead, as those of a real one are."""

    def generate(self, call: GenerationCall, timeout: float) -> AsyncGenerator[Round]:
        return read_ahead(super().generate(call, timeout))


async def test_rounds_that_came_before_the_loss_are_committed_before_the_rest_is_asked_for() -> None:
    both = [ReadAhead(f"{index}:1", Script(gamma=0)) for index in range(2)]
    both[0].failures = both[1].failures = [(5, NoVerifier("lost"))]
    generation = Generation(*both, pause=0.01)
    assert await generation.run() == output(Script())
    before, after = sorted([*both[0].calls, *both[1].calls], key=lambda call: call.epoch)
    assert list(after.tokens) == [*before.tokens, *output(Script())[:5]]
    assert generation.commits < len(output(Script()))


async def test_a_full_verifier_stays_ready_and_when_all_are_full_that_is_the_error() -> None:
    generation = Generation(*verifiers(2, (0, QueueFull("full"))))
    with pytest.raises(QueueFull):
        await generation.run()
    assert set(generation.pool.states.values()) == {"ready"}


async def test_losses_in_a_row_are_counted_up_to_the_limit_and_a_round_between_starts_again() -> None:
    many = verifiers(4, (0, NoVerifier("lost")))
    with pytest.raises(NoVerifier, match="lost"):
        await Generation(*many, attempts=2).run()
    assert sum(len(verifier.calls) for verifier in many) == 3
    flaky = verifiers(4, (1, NoVerifier("lost")))
    assert await Generation(*flaky, attempts=1).run() == output(Script())


async def test_an_error_that_another_verifier_would_have_too_is_not_repeated() -> None:
    both = verifiers(2, (0, InternalError("a bug")))
    with pytest.raises(InternalError):
        await Generation(*both).run()
    assert sum(len(verifier.calls) for verifier in both) == 1


async def test_a_deadline_that_has_passed_calls_nobody() -> None:
    (only,) = verifiers(1)
    with pytest.raises(DeadlineExceeded):
        await Generation(only).run(seconds=-1.0)
    assert only.calls == []


async def test_without_another_verifier_it_gives_up_after_the_time_given() -> None:
    with pytest.raises(NoVerifier, match="no verifier is ready"):
        await Generation(*verifiers(1, (1, NoVerifier("lost")))).run()
