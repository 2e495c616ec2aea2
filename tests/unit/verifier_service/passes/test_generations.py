"""Each call becomes a session with a fitting mode, γ and drafts, and its rounds are counted."""

import asyncio
import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from specdec.errors import Draining, Fenced, GammaTooLarge, QueueFull, UnsupportedParameter
from specdec.planning.gamma import AcceptanceEstimate
from specdec.planning.gamma_policy import AUTO, GammaPolicy, PolicyKind
from specdec.rules.draft import Verdict
from specdec.rules.speculation import Mode, Speculation, TreeOptions
from specdec.sampling.grammar import Grammar, GrammarKind
from specdec.sampling.params import SamplingParams
from specdec.wire.generation import GenerationCall, Round, VerifierInfo
from tests.unit.verifier_service.verifier_fakes import (
    VOCABULARY,
    Collected,
    DirectTarget,
    continuation,
    make_call,
    make_link,
    make_metrics,
    make_speculation,
    point_mass,
)
from verifier_service.backends.batch_plan import Outcome, Row
from verifier_service.config import VerifierSettings
from verifier_service.drafts.drafts import Drafts, Proposal
from verifier_service.drafts.pool import DrafterPool
from verifier_service.drafts.sources import DraftSources
from verifier_service.metrics import VerifierMetrics
from verifier_service.passes.generations import Generations, fixed_gamma, greedy_as_coupled, with_policy
from verifier_service.speculation import controller as speculation

EGAG = GammaPolicy(PolicyKind.EGAG)

INFO = VerifierInfo(
    model="m",
    tokenizer_hash="t",
    vocab_size=VOCABULARY,
    context_length=100,
    end_token_ids=(),
    gamma_max=4,
    system_fingerprint="f",
)


class Service:
    """Generations over a target that answers at once, with one ready drafter that never drafts."""

    def __init__(self) -> None:
        settings = VerifierSettings.load(None, {"model": {"path": "m"}, "drafting": {"timeout": 0.001}})
        self.target, self.metrics, self.link = DirectTarget(), make_metrics(), make_link()
        self.link.connected("small", 0.001)
        pool, self.speculation = DrafterPool([self.link]), make_speculation()
        sources = DraftSources(settings, pool, self.speculation, INFO.vocab_size)
        loop: Any = self.target
        self.generations = Generations(settings, INFO, loop, sources, self.speculation, self.metrics)

    def rounds(self, call: GenerationCall) -> list[Round]:
        reader = Collected()
        self.generations.open(call, reader)
        self.finish()
        assert not reader.errors
        return reader.rounds

    def finish(self) -> None:
        while self.target.advance():
            pass


def total(metrics: VerifierMetrics, name: str) -> float | None:
    return metrics.registry.get_sample_value(f"specdec_spec_{name}_total")


async def test_a_call_is_generated_and_its_rounds_are_counted() -> None:
    service = Service()
    rounds = service.rounds(make_call(max_tokens=5))
    assert tuple(token for done in rounds for token in done.tokens) == continuation(3, 5)
    assert total(service.metrics, "plain_rounds") == 5
    assert total(service.metrics, "asked_rounds") == 4, "the last round has no room for a draft"


@pytest.mark.parametrize(
    ("speculation", "drafting", "expected"),
    [
        (Speculation(Mode.OFF), True, True),
        (Speculation(Mode.REJECTION, 0), True, True),
        (Speculation(Mode.REJECTION, 0, detail=True), False, False),
        (Speculation(Mode.REJECTION, 2), False, False),
        (Speculation(Mode.REJECTION), False, True),
        (Speculation(Mode.REJECTION), True, False),
    ],
)
async def test_the_first_round_may_begin_unasked_where_it_is_known_to_be_plain(
    speculation: Speculation, drafting: bool, expected: bool
) -> None:
    service = Service()
    service.speculation.drafting = drafting
    service.rounds(make_call(speculation=speculation))
    assert service.target.admission is not None
    assert service.target.admission.runs_ahead is expected


class Guessing(Drafts):
    """A source that probably has the next tokens."""

    guesses = True


async def test_a_session_with_a_grammar_or_a_guess_is_asked_for_its_first_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A row that begins without a request has neither the masks of its grammar nor a guess."""
    service = Service()
    plain, grammar = make_call(speculation=Speculation(Mode.OFF)), Grammar(GrammarKind.REGEX, "a*")
    assert service.generations._sequence(plain, Collected(), math.inf).row.runs_ahead
    following = replace(plain, sampling=replace(plain.sampling, grammar=grammar))
    assert not service.generations._sequence(following, Collected(), math.inf).row.runs_ahead
    assert not service.generations._sequence(plain, Collected(), 3).row.runs_ahead, "nor has it credit"
    monkeypatch.setattr(service.generations._sources, "drafts", lambda *_: Guessing())
    guessing = make_call(speculation=Speculation(Mode.REJECTION))
    assert not service.generations._sequence(guessing, Collected(), math.inf).row.runs_ahead
    service.target.running = 1
    assert service.generations._sequence(guessing, Collected(), math.inf).row.runs_ahead, "a step is worth more"


END = 0
MEAN_LENGTH = 20
LIKELY = 0.9


class Random(DirectTarget):
    """Accepts each draft with a fixed probability. Every token may be the end."""

    def __init__(self, *overlaps: float) -> None:
        """Create the target; its verdicts report the overlaps, if given, of up to four drafts."""
        super().__init__()
        self.dice = random.Random(1)
        self.overlaps = overlaps

    def judge(self, row: Row) -> Outcome:
        drafted = len(row.draft.tokens)
        accepted = next((step for step in range(drafted) if self.dice.random() >= LIKELY), drafted)
        tokens = tuple(END if self.dice.random() < 1 / MEAN_LENGTH else 1 for _ in range(accepted + 1))
        overlaps = self.overlaps[: min(accepted + 1, drafted)]
        verdict = Verdict(tokens, accepted, drafted, overlaps=overlaps)
        return Outcome(verdict, started=0.0, seconds=0.1, offered=drafted)


class Endless(Drafts):
    """Returns as many drafts as requested."""

    def request(self, gamma: int, changed: Callable[[], object]) -> None:
        self.gamma = gamma

    def proposal(self) -> Proposal:
        return Proposal(point_mass(*[1] * self.gamma))


async def test_the_published_acceptance_is_of_verdicts_and_not_of_cut_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At a mean length of 20 tokens, counting ends as rejections would lower 0.9 to 0.86."""
    monkeypatch.setattr(speculation, "_LEAST_SECONDS", 0.0)  # include the last round on a machine of any speed
    service, target = Service(), Random()
    service.speculation.acceptance.overall = AcceptanceEstimate(decay=1.0)
    service.generations._loop = service.target = target  # type: ignore[assignment]
    monkeypatch.setattr(service.generations._sources, "drafts", lambda *_: Endless())
    for number in range(800):
        call = make_call(
            session_id=f"s{number}",
            max_tokens=90,
            stop_token_ids=(END,),
            sampling=SamplingParams(),
            speculation=Speculation(Mode.REJECTION, 4),
        )
        assert service.rounds(call)[-1].finish
    alpha = service.metrics.registry.get_sample_value("specdec_spec_alpha")
    assert alpha == pytest.approx(LIKELY, abs=0.01)


async def test_the_published_acceptance_is_the_mean_overlap_where_it_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The drafts are accepted with probability 0.9, and the target reports another, to tell the estimates apart."""
    monkeypatch.setattr(speculation, "_LEAST_SECONDS", 0.0)  # include the last round on a machine of any speed
    service, target = Service(), Random(*[0.25] * 4)
    service.speculation.acceptance.overall = AcceptanceEstimate(decay=1.0)
    service.generations._loop = service.target = target  # type: ignore[assignment]
    monkeypatch.setattr(service.generations._sources, "drafts", lambda *_: Endless())
    for number in range(60):
        call = make_call(
            session_id=f"s{number}",
            max_tokens=90,
            stop_token_ids=(END,),
            sampling=SamplingParams(),
            speculation=Speculation(Mode.REJECTION, 4),
        )
        assert service.rounds(call)[-1].finish
    found = [service.metrics.registry.get_sample_value(f"specdec_spec_{name}") for name in ("alpha", "overlap")]
    assert found == [pytest.approx(0.25, abs=0.01), pytest.approx(0.25, abs=1e-9)]


async def test_a_call_that_breaks_a_limit_is_refused_before_it_starts() -> None:
    with pytest.raises(GammaTooLarge):
        Service().generations.open(make_call(speculation=Speculation(Mode.REJECTION, 5)), Collected())


@pytest.mark.parametrize(("temperature", "mode"), [(0.0, Mode.COUPLED), (1.0, Mode.REJECTION)])
async def test_target_and_drafter_work_in_the_same_mode(temperature: float, mode: Mode) -> None:
    service, sampling = Service(), SamplingParams(temperature=temperature)
    service.rounds(make_call(max_tokens=3, sampling=sampling))
    assert {row.call.speculation.mode for row in service.target.rows} == {mode}
    service = Service()
    service.link.outbox.ping(1)
    service.generations.open(make_call(sampling=sampling), Collected())
    (opening,) = (await service.link.outbox.take()).opens
    assert opening.mode is mode


@pytest.mark.parametrize(
    ("temperature", "mode", "lenience", "expected"),
    [
        (0.0, Mode.REJECTION, 1.0, Mode.COUPLED),
        (0.0, Mode.BLOCK, 1.0, Mode.COUPLED),
        (0.0, Mode.REJECTION, 0.9, Mode.REJECTION),
        (0.0, Mode.OFF, 1.0, Mode.OFF),
        (0.1, Mode.REJECTION, 1.0, Mode.REJECTION),
        (1.0, Mode.BLOCK, 1.0, Mode.BLOCK),
    ],
)
def test_greedy_drafts_need_no_distribution(temperature: float, mode: Mode, lenience: float, expected: Mode) -> None:
    speculation = Speculation(mode=mode, gamma=None, lenience=lenience)
    call = make_call(sampling=SamplingParams(temperature=temperature), speculation=speculation)
    assert greedy_as_coupled(call).speculation == Speculation(expected, None, lenience)


@pytest.mark.parametrize(
    ("speculation", "default", "expected"),
    [
        (Speculation(Mode.OFF), None, 0),
        (Speculation(Mode.OFF, 3), 2, 0),
        (Speculation(Mode.BLOCK, 0), None, 0),
        (Speculation(Mode.BLOCK), None, None),
        (Speculation(Mode.BLOCK), 2, 2),
        (Speculation(Mode.BLOCK), 9, 4),
        (Speculation(Mode.COUPLED, 2), None, 2),
        (Speculation(policy=EGAG), None, 4),
        (Speculation(policy=EGAG), 2, 4),
        (Speculation(policy=GammaPolicy(PolicyKind.OPTIMAL)), 2, None),
    ],
)
def test_the_call_then_the_settings_then_the_costs_choose_gamma(
    speculation: Speculation, default: int | None, expected: int | None
) -> None:
    assert fixed_gamma(make_call(speculation=speculation), default, gamma_max=4) == expected


@pytest.mark.parametrize(
    ("speculation", "policy"),
    [
        (Speculation(), EGAG),
        (Speculation(gamma=3), AUTO),
        (Speculation(policy=GammaPolicy(max=3)), GammaPolicy(max=3)),
        (Speculation(policy=GammaPolicy(PolicyKind.OPTIMAL)), GammaPolicy(PolicyKind.OPTIMAL)),
        (Speculation(tree=TreeOptions(4, 2, 2)), AUTO),
    ],
)
def test_the_default_policy_is_of_calls_that_choose_nothing(speculation: Speculation, policy: GammaPolicy) -> None:
    assert with_policy(make_call(speculation=speculation), EGAG).speculation.policy == policy


@pytest.mark.parametrize("epoch", [1, 2])
async def test_a_newer_or_repeated_epoch_ends_the_generation_before_it(epoch: int) -> None:
    service, older, newer = Service(), Collected(), Collected()
    first = service.generations.open(make_call(), older)
    while not older.rounds:
        service.target.advance()
    service.generations.open(make_call(epoch=epoch), newer)
    assert first.ended
    assert [type(error) for error in older.errors] == [Fenced]
    assert len(older.rounds) == 1
    service.finish()
    assert len(older.rounds) == 1
    assert newer.rounds[-1].finish


async def test_an_older_epoch_is_refused_and_the_one_that_runs_goes_on() -> None:
    service, running = Service(), Collected()
    service.generations.open(make_call(epoch=2), running)
    with pytest.raises(Fenced):
        service.generations.open(make_call(epoch=1), Collected())
    service.finish()
    assert running.rounds[-1].finish


async def test_a_finished_generation_is_not_fenced_after_the_fact() -> None:
    service, first = Service(), Collected()
    service.generations.open(make_call(), first)
    service.finish()
    service.rounds(make_call(epoch=2))
    assert not first.errors


async def test_draining_waits_for_what_runs_and_takes_nothing_new() -> None:
    service, running = Service(), Collected()
    service.generations.open(make_call(), running)
    draining = asyncio.create_task(service.generations.drain(3600))
    await asyncio.sleep(0)
    with pytest.raises(Draining):
        service.generations.open(make_call(session_id="late"), Collected())
    service.finish()
    assert await draining == 0
    assert running.rounds[-1].finish


async def test_what_does_not_end_in_time_is_ended_after_the_rounds_there_are() -> None:
    service, running = Service(), Collected()
    sequence = service.generations.open(make_call(), running)
    while not running.rounds:
        service.target.advance()
    assert await service.generations.drain(0.01) == 1
    assert sequence.ended
    assert [type(error) for error in running.errors] == [Draining]
    assert len(running.rounds) == 1


async def test_nothing_to_drain_is_no_wait() -> None:
    assert await Service().generations.drain(3600) == 0


class FullTarget(DirectTarget):
    """A target that admits no sequence."""

    def enter(self, sequence: object) -> None:
        raise QueueFull("too many are waiting")


async def test_a_generation_that_is_not_let_in_fails_and_leaves_nothing() -> None:
    service, reader = Service(), Collected()
    service.generations._loop = FullTarget()  # type: ignore[assignment]
    assert service.generations.open(make_call(), reader).ended
    assert [type(error) for error in reader.errors] == [QueueFull]
    assert not service.generations._running


async def test_a_grammar_without_a_compiler_is_refused() -> None:
    service, reader = Service(), Collected()
    sampling = SamplingParams(temperature=0.0, grammar=Grammar(GrammarKind.REGEX, "a*"))
    sequence = service.generations.open(make_call(sampling=sampling), reader)
    await asyncio.gather(*service.generations._compiling)
    assert [type(error) for error in reader.errors] == [UnsupportedParameter]
    assert sequence.ended
