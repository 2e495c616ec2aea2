"""A generation continues on another verifier after a loss, as often and as long as the settings allow."""

import time
from collections.abc import Sequence

import pytest
from prometheus_client import CollectorRegistry

from gateway.config import FailoverSettings
from gateway.metrics import GatewayMetrics
from gateway.verifiers.balancer import VerifierPool
from gateway.verifiers.failover import Failover
from specdec.errors import DeadlineExceeded, Draining, InternalError, NoVerifier, QueueFull, SpecdecError
from specdec.rules.speculation import Mode, Speculation
from specdec.sampling.params import SamplingParams
from specdec.wire.generation import GenerationCall, VerifierInfo
from tests.support.gateway_fakes import EOS, TOKENIZER_HASH, Script, ScriptedVerifier, knowing, output

PROMPT = tuple(b"Say it")


class Generation:
    """One generation whose rounds are committed as they arrive."""

    def __init__(self, *verifiers: ScriptedVerifier, **settings: float) -> None:
        self.tokens = list(PROMPT)
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
        await self._failover.run(self, verifier, info, time.monotonic() + seconds)  # type: ignore[arg-type]
        return self.tokens[len(PROMPT) :]

    @property
    def committed(self) -> int:
        return len(self.tokens) - len(PROMPT)

    async def generate_at(
        self, verifier: ScriptedVerifier, info: VerifierInfo, call: GenerationCall, seconds: float
    ) -> None:
        async for verified in verifier.generate(call, seconds):
            self.tokens += verified.tokens


def verifiers(count: int, *failures: tuple[int, SpecdecError]) -> Sequence[ScriptedVerifier]:
    """Return verifiers whose first calls fail as given."""
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


async def test_a_full_verifier_stays_ready_and_all_full_ones_are_an_error() -> None:
    generation = Generation(*verifiers(2, (0, QueueFull("full"))))
    with pytest.raises(QueueFull):
        await generation.run()
    assert set(generation.pool.states.values()) == {"ready"}


async def test_losses_in_a_row_are_counted_to_the_limit_and_a_round_resets_them() -> None:
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
