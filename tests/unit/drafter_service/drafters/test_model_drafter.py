"""Drafting with a model: the right q for every token, for any batch, history and neighbours."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from drafter_service.drafters import model_drafter
from drafter_service.drafters.model_drafter import ModelDrafter
from drafter_service.sessions.draft_session import DraftSession
from drafter_service.sessions.drafter import DraftedToken, DraftFailure, ScheduledSession
from specdec.engine import Chunk
from specdec.errors import InternalError, NoDistribution, TokenOutOfRange
from specdec.planning.gamma_policy import GammaPolicy, PolicyKind
from specdec.rules.draft import SparseProbs
from specdec.rules.speculation import Mode
from specdec.sampling.distribution import History, probabilities
from specdec.sampling.params import SamplingParams
from specdec.wire.session import Open
from tests.support.device_syncs import device_syncs
from tests.support.drafter_fakes import CONTEXT, OPEN, VOCAB, PrefixModel, expected_drafts, logits_after

PENALISED = SamplingParams(seed=8, presence_penalty=1.5, repetition_penalty=1.3, min_tokens=3, end_token_ids=(4,))
KINDS = [
    OPEN,
    replace(OPEN, mode=Mode.BLOCK, params=SamplingParams(seed=6, temperature=0.7, top_p=0.8)),
    replace(OPEN, mode=Mode.COUPLED, params=SamplingParams(seed=7)),
    replace(OPEN, params=SamplingParams(temperature=0.0)),
    replace(OPEN, params=PENALISED, tokens=(1, 4, 4, 2, 9)),
]


def _drafter(model: PrefixModel | None = None, support: int = 64) -> ModelDrafter:
    return ModelDrafter("tiny", model or PrefixModel(), support)


def _session(drafter: ModelDrafter, opened: Open, key: str = "s") -> DraftSession:
    session = DraftSession(key, opened, CONTEXT)
    assert drafter.sequences.admit(key, session.limit, session.tokens_from(0))
    return session


def _whole(drafter: ModelDrafter, session: DraftSession) -> ScheduledSession:
    return ScheduledSession(session, len(session) - drafter.sequences.length(session.key))


def _step(drafter: ModelDrafter, *sessions: DraftSession) -> list[DraftedToken]:
    """Run one step for all sessions, each of which must succeed, and add the drafts."""
    outcomes = drafter.step([_whole(drafter, session) for session in sessions])
    proposed = [outcome for outcome in outcomes if isinstance(outcome, DraftedToken)]
    assert [outcome.session for outcome in proposed] == list(sessions)
    for outcome in proposed:
        outcome.session.extend(outcome.token)
    return proposed


def _plain(probs: SparseProbs | None) -> tuple[list[int], list[int]] | None:
    return None if probs is None else (probs.ids.tolist(), probs.weights.tolist())


def _same(proposed: Sequence[DraftedToken], expected: Sequence[tuple[int, SparseProbs | None]]) -> bool:
    return [(one.token, _plain(one.probs)) for one in proposed] == [(token, _plain(q)) for token, q in expected]


@pytest.mark.parametrize("opened", KINDS)
def test_drafts_come_from_q_of_their_own_prefix(opened: Open) -> None:
    drafter = _drafter()
    session = _session(drafter, opened)
    assert _same([_step(drafter, session)[0] for _ in range(5)], expected_drafts(opened, 5))


def test_a_session_drafts_the_same_in_a_batch_of_all_modes() -> None:
    drafter = _drafter()
    sessions = [_session(drafter, opened, f"s{number}") for number, opened in enumerate(KINDS)]
    steps = [_step(drafter, *sessions) for _ in range(4)]
    for row, opened in enumerate(KINDS):
        assert _same([step[row] for step in steps], expected_drafts(opened, 4))


def test_certainty_is_that_of_q_and_for_greedy_ones_at_temperature_1() -> None:
    drafter = _drafter()
    asking = replace(OPEN, policy=GammaPolicy(PolicyKind.EGAG))
    greedy = replace(asking, params=SamplingParams(temperature=0.0))
    sessions = [_session(drafter, opened, f"s{row}") for row, opened in enumerate((OPEN, asking, greedy))]
    silent, sampled, warm = _step(drafter, *sessions)
    assert silent.certainty is None
    assert sampled.certainty is not None
    assert sampled.certainty.confidence == pytest.approx(_q(asking, sampled.token))
    assert warm.certainty is not None
    assert 0.0 < warm.certainty.entropy < 1.0
    assert warm.certainty.confidence == pytest.approx(_q(asking, warm.token))


def _q(opened: Open, token: int) -> float:
    logits = logits_after(list(opened.tokens))[None]
    return float(probabilities(logits, [opened.params], [History()])[0, token])


def test_the_support_is_cut_before_the_draw() -> None:
    drafter = _drafter(support=2)
    session = _session(drafter, OPEN)
    proposed = [_step(drafter, session)[0] for _ in range(6)]
    assert _same(proposed, expected_drafts(OPEN, 6, support=2))
    assert {len(one.probs.ids) for one in proposed if one.probs is not None} == {2}


def test_greedy_is_a_point_mass() -> None:
    drafter = _drafter()
    (proposed,) = _step(drafter, _session(drafter, replace(OPEN, params=SamplingParams(temperature=0.0))))
    assert _plain(proposed.probs) is not None
    assert proposed.probs is not None
    assert proposed.probs.ids.tolist() == [proposed.token]


def test_a_batch_of_greedy_sessions_makes_no_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = _drafter()
    kinds = [replace(OPEN, params=replace(params, temperature=0.0)) for params in (OPEN.params, PENALISED)]
    sessions = [_session(drafter, opened, f"s{row}") for row, opened in enumerate(kinds)]
    monkeypatch.delattr(model_drafter, "probabilities")
    steps = [_step(drafter, *sessions) for _ in range(4)]
    for row, opened in enumerate(kinds):
        assert _same([step[row] for step in steps], expected_drafts(opened, 4))


def test_a_greedy_row_of_nan_fails_alone() -> None:
    model = PrefixModel()
    model.spoiled.add("bad")
    drafter = _drafter(model)
    greedy = replace(OPEN, params=SamplingParams(temperature=0.0))
    sessions = [_session(drafter, greedy, key) for key in ("good", "bad")]
    good, bad = drafter.step([_whole(drafter, session) for session in sessions])
    assert isinstance(good, DraftedToken)
    assert isinstance(bad, DraftFailure)
    assert isinstance(bad.error, NoDistribution)


def test_a_prompt_computed_in_parts_drafts_with_its_last_part() -> None:
    drafter = _drafter()
    session = _session(drafter, OPEN)
    assert drafter.step([ScheduledSession(session, 2)]) == []
    assert _same(_step(drafter, session), expected_drafts(OPEN, 1))


def test_parts_of_a_prompt_and_steps_share_a_pass() -> None:
    model = PrefixModel()
    drafter = _drafter(model)
    ready, long = _session(drafter, OPEN, "ready"), _session(drafter, replace(OPEN, tokens=tuple(range(9))), "long")
    _step(drafter, ready)
    outcomes = drafter.step([ScheduledSession(ready, 1), ScheduledSession(long, 4)])
    assert [outcome.session.key for outcome in outcomes] == ["ready"]
    assert [(chunk.session, len(chunk.tokens), chunk.logits) for chunk in model.passes[-1]] == [
        ("ready", 1, 1),
        ("long", 4, 0),
    ]


def test_a_session_with_impossible_parameters_fails_alone() -> None:
    drafter = _drafter()
    bad = _session(drafter, replace(OPEN, params=SamplingParams(logit_bias={VOCAB: 1.0})), "bad")
    good = [_session(drafter, OPEN, "a"), _session(drafter, OPEN, "b")]
    first, failed, last = drafter.step([_whole(drafter, one) for one in (good[0], bad, good[1])])
    assert isinstance(failed, DraftFailure)
    assert failed.session is bad
    assert isinstance(failed.error, TokenOutOfRange)
    for outcome in (first, last):
        assert isinstance(outcome, DraftedToken)
        assert _same([outcome], expected_drafts(OPEN, 1))


def test_a_row_of_nan_fails_alone() -> None:
    model = PrefixModel()
    model.spoiled.add("bad")
    drafter = _drafter(model)
    sessions = [_session(drafter, OPEN, key) for key in ("good", "bad")]
    good, bad = drafter.step([_whole(drafter, session) for session in sessions])
    assert isinstance(good, DraftedToken)
    assert isinstance(bad, DraftFailure)
    assert isinstance(bad.error, InternalError)


def test_its_step_is_measured_without_leaving_a_trace() -> None:
    model = PrefixModel()
    drafter = _drafter(model)
    assert drafter.info.step_seconds > 0
    assert not model.kv
    assert (drafter.info.model, drafter.info.tokenizer_hash) == ("tiny", model.tokenizer_hash)


class ThereModel(PrefixModel):
    """A model whose logits are on another device."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        return super().forward(chunks).to(self._device, non_blocking=True)


@pytest.mark.parametrize("kinds", [KINDS, *([kind] for kind in KINDS)])
def test_a_step_on_another_device_is_the_same_and_looks_at_it_once(kinds: list[Open], device: torch.device) -> None:
    drafter = _drafter(ThereModel(device))
    sessions = [_session(drafter, opened, f"s{number}") for number, opened in enumerate(kinds)]
    steps = []
    for _ in range(4):
        with device_syncs(device) as seen:
            steps.append(_step(drafter, *sessions))
        assert len(seen) == 1, seen
    for row, opened in enumerate(kinds):
        assert _same([step[row] for step in steps], expected_drafts(opened, 4))


def test_a_row_of_nan_on_another_device_fails_alone(device: torch.device) -> None:
    model = ThereModel(device)
    model.spoiled.add("bad")
    drafter = _drafter(model)
    sessions = [_session(drafter, opened, key) for key, opened in zip(("good", "bad", "fine"), KINDS, strict=False)]
    outcomes = drafter.step([_whole(drafter, session) for session in sessions])
    assert [type(outcome) for outcome in outcomes] == [DraftedToken, DraftFailure, DraftedToken]
    assert isinstance(outcomes[1], DraftFailure)
    assert isinstance(outcomes[1].error, NoDistribution)
