"""Chains for the possible outcomes of a pending verdict: which are made, that they equal the drafts after it, and what
happens to them."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from drafter_service.config import DrafterSettings
from drafter_service.drafters.model_drafter import ModelDrafter
from drafter_service.metrics import DrafterMetrics
from drafter_service.sessions.draft_runner import DraftRunner
from drafter_service.sessions.outcomes import fan_out
from specdec.planning.gamma_policy import GammaPolicy
from specdec.rules.prefix import PrefixHash
from specdec.rules.speculation import Mode
from specdec.sampling.params import SamplingParams
from specdec.serving.settings import ModelSettings
from specdec.wire.draft import DraftTokens
from specdec.wire.session import Close, Open
from tests.support.drafter_fakes import OPEN, VOCAB, ListStream, PrefixModel, commit, continued, expected_drafts

SETTINGS = DrafterSettings(model=ModelSettings(path=Path("tiny")), ahead=1, outcomes=8)
PUSHING = replace(OPEN, gamma=2, outcomes=6)


class Bench:
    """A runner over a PrefixModel, advanced by the test."""

    def __init__(self, settings: DrafterSettings = SETTINGS, tokens: int = 1000) -> None:
        self.model = PrefixModel(tokens)
        self.runner = DraftRunner(
            ModelDrafter("tiny", self.model, support=8), settings, DrafterMetrics(CollectorRegistry())
        )
        self.stream = ListStream()

    def run(self, *messages: object) -> list[DraftTokens]:
        """Process messages, draft until no session needs more, and return the drafts sent."""
        before = len(self.stream.drafts)
        self.runner.take(self.stream, messages)  # type: ignore[arg-type]
        while self.runner.step():
            self.runner.send()
        self.runner.send()
        return self.stream.drafts[before:]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def _prefixes(opened: Open, chunks: list[DraftTokens], drafts: tuple[int, ...]) -> dict[tuple[int, ...], DraftTokens]:
    """Return the pushed chunks by the tokens that they expect after the session's tokens."""
    ends = {(*drafts[:kept], token) for kept in range(len(drafts) + 1) for token in range(VOCAB)}
    hashes = {PrefixHash((*opened.tokens, *end)).value: end for end in ends}
    return {hashes[chunk.prefix_hash]: chunk for chunk in chunks if chunk.base_len > len(opened.tokens)}


def _same(chunk: DraftTokens, opened: Open, count: int) -> bool:
    drawn = expected_drafts(opened, count, support=8)
    probs = [each for _, each in drawn if each is not None]
    return list(chunk.draft.tokens) == [token for token, _ in drawn] and all(
        one is not None and one.ids.equal(two.ids) and one.weights.equal(two.weights)
        for one, two in zip(chunk.draft.probs, probs, strict=True)
    )


@pytest.mark.parametrize("mode", [Mode.REJECTION, Mode.BLOCK, Mode.COUPLED])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_each_chain_is_what_would_be_drafted_once_its_outcome_is_committed(mode: Mode, temperature: float) -> None:
    opened = replace(PUSHING, mode=mode, params=SamplingParams(seed=5, temperature=temperature))
    first, *pushed = Bench().run(opened)
    drafts = tuple(first.draft.tokens)
    found = _prefixes(opened, [chunk for chunk in pushed if chunk.base_len > len(opened.tokens)], drafts)
    outcomes = {end: chunk for end, chunk in found.items() if end != drafts}
    assert len(outcomes) == 6
    assert {len(end) - 1 for end in outcomes} == {0, 1, 2}
    for end, chunk in outcomes.items():
        assert end[-1] != [*drafts, None][len(end) - 1]
        assert _same(chunk, continued(opened, *end), 2)


def test_nothing_is_pushed_unrequested_or_where_the_draft_ends_itself(bench: Bench) -> None:
    bench.run(replace(PUSHING, outcomes=0))
    bench.run(replace(PUSHING, session_id="t", policy=GammaPolicy(min_confidence=0.3)))
    assert {chunk.base_len for chunk in bench.stream.drafts} <= {3, 5}


def test_a_session_continues_with_the_true_outcome_and_prepares_the_next(bench: Bench) -> None:
    first, *pushed = bench.run(PUSHING)
    found = _prefixes(PUSHING, pushed, tuple(first.draft.tokens))
    end, chunk = next((end, chunk) for end, chunk in found.items() if len(end) == 1)
    more = bench.run(commit(3, *end, gamma=2))
    longer = continued(PUSHING, *end)
    assert not any(each.base_len == len(longer.tokens) for each in more)
    ends = _prefixes(longer, more, tuple(chunk.draft.tokens))
    assert len({end for end in ends if end != tuple(chunk.draft.tokens)}) == 6


def test_an_outcome_that_was_not_prepared_is_drafted_as_ever(bench: Bench) -> None:
    first, *pushed = bench.run(PUSHING)
    known = {end[0] for end in _prefixes(PUSHING, pushed, tuple(first.draft.tokens)) if len(end) == 1}
    other = next(token for token in range(VOCAB) if token not in known | {first.draft.tokens[0]})
    answer, *_ = bench.run(commit(3, other, gamma=2))
    assert answer.base_len == 4
    assert _same(answer, continued(PUSHING, other), 2)


def test_outcomes_leave_no_memory_behind(bench: Bench) -> None:
    free = bench.model.free
    bench.run(PUSHING)
    assert len(bench.model.kv) > 1
    bench.run(Close("s", 1))
    assert (bench.model.free, bench.model.kv) == (free, {})


def test_outcomes_take_no_memory_that_a_session_wants() -> None:
    bench = Bench(tokens=12)
    opened = replace(PUSHING, max_len=12)
    bench.run(opened)
    bench.run(replace(opened, session_id="t"))
    assert not bench.stream.nacks
    assert {draft.session_id for draft in bench.stream.drafts} == {"s", "t"}


@pytest.mark.parametrize(
    ("budget", "gamma", "alpha", "expected"),
    [(8, 0, 0.5, [8]), (6, 2, 0.01, None), (8, 4, 0.7, None), (16, 4, 0.99, None), (0, 3, 0.7, [0, 0, 0, 0])],
)
def test_guesses_get_fewer_with_the_number_of_drafts_that_must_hold(
    budget: int, gamma: int, alpha: float, expected: list[int] | None
) -> None:
    shares = fan_out(budget, gamma, alpha)
    assert (len(shares), sum(shares)) == (gamma + 1, budget)
    assert expected in (None, shares)
    assert all(one + 1 >= other for one, other in pairwise(shares[:-1]))
