"""Guesses of local sources change the number of a draft model's steps, and neither its drafts nor their q̂."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from pydantic import ValidationError

from drafter_service.config import DrafterSettings
from drafter_service.drafters.model_drafter import ModelDrafter
from drafter_service.drafters.source_reader import Guesser, SourceReader
from drafter_service.metrics import DrafterMetrics
from drafter_service.sessions.draft_runner import DraftRunner
from specdec.planning.gamma_policy import GammaPolicy
from specdec.rules.draft import SparseProbs
from specdec.rules.speculation import Mode
from specdec.sampling.params import SamplingParams
from specdec.serving.settings import ModelSettings
from specdec.wire.session import Open
from tests.support.drafter_fakes import OPEN, ListStream, PrefixModel, commit, expected_drafts

GAMMA = 8
OPENED = replace(OPEN, gamma=GAMMA)
PENALISED = SamplingParams(seed=8, presence_penalty=1.5, repetition_penalty=1.3, min_tokens=3, end_token_ids=(4,))
GREEDY = replace(OPENED, params=SamplingParams(temperature=0.0))
KINDS = [
    OPENED,
    replace(OPENED, mode=Mode.BLOCK, params=SamplingParams(seed=6, temperature=0.7, top_p=0.8)),
    replace(OPENED, mode=Mode.COUPLED, params=SamplingParams(seed=7)),
    GREEDY,
    replace(OPENED, params=PENALISED, tokens=(1, 4, 4, 2, 9)),
]
ALL_RIGHT = (True,) * GAMMA
Right = Sequence[bool]


class Oracle:
    """A source that knows the session's drafts, and guesses wrong where `right` is false."""

    def __init__(self, opened: Open, right: Right) -> None:
        known = [token for token, _ in expected_drafts(opened, GAMMA)]
        self._guesses = [token if ok else (token + 1) % 11 for token, ok in zip(known, right, strict=True)]
        self.asked: list[int] = []
        """Number of guesses of each request."""

    def read(self, tokens: Sequence[int]) -> None:
        pass

    def draft(self, drafts: Sequence[int], most: int) -> list[int]:
        self.asked.append(most)
        return self._guesses[len(drafts) : len(drafts) + most]


class Stage:
    """A runner whose draft model has an oracle, and the stream of its verifier."""

    def __init__(self, opened: Open, right: Right = ALL_RIGHT, model: PrefixModel | None = None) -> None:
        self.model, self.source, self.stream = model or PrefixModel(), Oracle(opened, right), ListStream()
        self._registry = CollectorRegistry()
        settings = DrafterSettings(model=ModelSettings(path=Path("model")), local=("ngram",), ahead=0)
        guesser = Guesser([SourceReader(lambda domain, known: self.source, ahead=0)])
        drafter = ModelDrafter("tiny", self.model, 64, guesser=guesser)
        self.model.passes.clear()
        self.runner = DraftRunner(drafter, settings, DrafterMetrics(self._registry))
        self.runner.take(self.stream, [opened])

    def run(self) -> list[tuple[int, tuple[list[int], list[int]] | None]]:
        """Run until nothing is wanted, and return every draft with its q̂."""
        while self.runner.step():
            self.runner.send()
        self.runner.send()
        return [each for sent in self.stream.drafts for each in _plain(sent.draft.tokens, sent.draft.probs)]

    def metric(self, name: str) -> float | None:
        return self._registry.get_sample_value(name)


def _plain(tokens: Sequence[int], probs: Sequence[SparseProbs | None]) -> list[tuple[int, object]]:
    laws = [None if each is None else (each.ids.tolist(), each.weights.tolist()) for each in probs]
    return list(zip(tokens, laws or [None] * len(tokens), strict=True))


def _expected(opened: Open) -> list[tuple[int, object]]:
    drawn = expected_drafts(opened, GAMMA)
    return [each for token, law in drawn for each in _plain([token], [law])]


@pytest.mark.parametrize("opened", KINDS, ids=lambda each: f"{each.mode} {each.params.temperature}")
@pytest.mark.parametrize("right", [ALL_RIGHT, (False,) * GAMMA, (True, True, False, True) * 2, (False, True) * 4])
def test_drafts_and_their_q_are_those_of_the_model_alone(opened: Open, right: Right) -> None:
    assert Stage(opened, right).run() == _expected(opened)


def test_right_guesses_save_steps() -> None:
    stage = Stage(OPENED)
    stage.run()
    steps = len(stage.model.passes)
    assert steps < GAMMA / 2
    assert stage.metric("specdec_drafter_saved_steps_total") == GAMMA - steps
    assert stage.metric("specdec_drafter_tokens_total") == GAMMA


def test_wrong_guesses_cost_no_step() -> None:
    stage = Stage(OPENED, (False,) * GAMMA)
    stage.run()
    assert len(stage.model.passes) == GAMMA
    assert stage.metric("specdec_drafter_saved_steps_total") == 0
    computed = stage.metric("specdec_drafter_computed_tokens_total")
    assert computed == len(OPENED.tokens) + GAMMA - 1 + (stage.metric("specdec_drafter_guesses_total") or 0)


def test_computed_state_of_wrong_guesses_is_dropped() -> None:
    stage = Stage(OPENED, (True, False) * 4)
    drafted = [token for token, _ in stage.run()]
    (key,) = stage.model.kv
    whole = [*OPENED.tokens, *drafted]
    assert stage.model.kv[key] == whole[: len(stage.model.kv[key])]
    assert len(stage.model.kv[key]) < len(whole)


@pytest.mark.parametrize("mode", [Mode.REJECTION, Mode.BLOCK])
def test_drafts_whose_use_matters_are_sent_after_each_step(mode: Mode) -> None:
    stage = Stage(replace(OPENED, mode=mode), (True, False) * 4)
    stage.run()
    assert len(stage.stream.drafts) == len(stage.model.passes) > 1


@pytest.mark.parametrize("opened", [GREEDY, replace(OPENED, mode=Mode.COUPLED)])
def test_drafts_whose_use_does_not_matter_are_sent_together(opened: Open) -> None:
    stage = Stage(opened, (True, False) * 4)
    stage.run()
    assert len(stage.stream.drafts) == 1 < len(stage.model.passes)


def test_a_policy_ends_the_chain_within_a_run() -> None:
    policy = GammaPolicy(min_confidence=1.0)
    stage = Stage(replace(OPENED, policy=policy))
    assert stage.run() == _expected(OPENED)[:1]
    (key,) = stage.model.kv
    assert stage.model.kv[key] == list(OPENED.tokens)


def test_sessions_that_push_chains_have_no_guesses() -> None:
    stage = Stage(replace(OPENED, outcomes=4))
    stage.run()
    assert stage.source.asked == []


def test_without_memory_for_guesses_there_are_none() -> None:
    stage = Stage(OPENED)
    stage.model.free = 1
    assert stage.runner.step()
    assert stage.model.passes[-1][0].logits == 1
    stage.model.free = GAMMA
    assert stage.run() == _expected(OPENED)
    assert len(stage.model.passes) < GAMMA
    assert stage.metric("specdec_drafter_dropped_sessions_total") == 0


def test_a_source_that_is_seldom_right_is_asked_for_less() -> None:
    def most_after(guess: Callable[[int], int]) -> int:
        stage = Stage(replace(OPENED, max_len=64))
        length = len(OPENED.tokens)
        for number in range(20):
            stage.source._guesses = [guess(number)] * GAMMA
            stage.runner.take(stage.stream, [commit(length, number % 11, gamma=GAMMA)])
            length += 1
            stage.runner.step()
        return max(stage.source.asked[-2:])

    assert most_after(lambda number: number % 11) > 4
    assert most_after(lambda number: (number + 1) % 11) <= 1


def test_only_draft_models_verify_guesses() -> None:
    with pytest.raises(ValidationError, match="local: only drafters of kind model verify guesses, and kind is hybrid"):
        DrafterSettings(model=ModelSettings(path=Path("model")), kind="hybrid", local=("suffix",))
