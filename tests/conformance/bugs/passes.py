"""Bugs in a model's KV: leftovers of a failed pass, positions missing in a drafter, and attention to the wrong keys."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from torch import Tensor

from drafter_service.app import load_engine
from drafter_service.drafters import model_drafter
from drafter_service.sessions.draft_session import DraftSession
from drafter_service.sessions.session_table import SessionTable
from specdec.engine import Engine, model_check
from specdec.engine.attention import AttentionRule, AttentionStep
from specdec.engine.cpu.operator import OperatorStep
from specdec.engine.cpu.slabs import SlabSpan
from specdec.rules.draft import Verdict
from specdec.sampling.distribution import History, probabilities
from specdec.sampling.params import SamplingParams
from tests.conformance.bugs.bug import Bug, Law, everywhere
from tests.conformance.bugs.service import Plant, rolled_back
from verifier_service.backends import target_pass
from verifier_service.backends.batch_plan import ScheduledChunk
from verifier_service.backends.target_pass import Result, keep
from verifier_service.drafts.session_drafts import RemoteDrafts


def failure_kept(patch: pytest.MonkeyPatch) -> None:
    """KV of a row that cannot be judged is kept, and the next attempt appends to it."""

    def planted(engine: Engine, chunk: ScheduledChunk, judged: Verdict | Exception) -> Result:
        if isinstance(judged, Verdict):
            return keep(engine, chunk, judged)
        return target_pass._without_draft(engine, chunk, judged)

    everywhere(patch, target_pass._concluded, planted)


def drafter_one_short(patch: pytest.MonkeyPatch) -> None:
    """After a full acceptance the drafter has no KV for the last draft, and the next token takes its position."""
    rolled_back(lambda held, wanted: min(wanted, held), load_engine)(patch)

    def planted(table: SessionTable, session: DraftSession, valid: int) -> None:
        if session.admitted:
            table._sequences.truncate(session.key, min(valid, len(session) - 1))

    patch.setattr(SessionTable, "_truncate", planted)


def pause_untold(patch: pytest.MonkeyPatch) -> None:
    """The drafter does not receive the tokens committed in rounds without drafts."""
    commit = RemoteDrafts.commit

    def planted(drafts: RemoteDrafts, tokens: Sequence[int], judged: int, gamma: int) -> None:
        commit(drafts, tokens, judged, gamma)
        drafts._unsent = drafts._unsent if gamma else ()

    patch.setattr(RemoteDrafts, "commit", planted)


def drafter_of_any_id(patch: pytest.MonkeyPatch) -> None:
    """The drafter's q ignores the set of allowed ids."""

    def planted(logits: Tensor, params: Sequence[SamplingParams], histories: Sequence[History]) -> Tensor:
        return probabilities(logits, [SamplingParams(each.temperature) for each in params], histories)

    patch.setattr(model_drafter, "probabilities", planted)


def attending(**changed: Any) -> Plant:
    """Make layers attend by another rule. The proof at load time, which refuses such an engine, is off."""

    def planted(step: type[AttentionStep]) -> Callable[..., Tensor]:
        attend = step.attend

        def other(  # as in the original
            self: AttentionStep, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: AttentionRule
        ) -> Tensor:
            return attend(self, layer, query, key, value, rule._replace(**changed))

        return other

    def plant(patch: pytest.MonkeyPatch) -> None:
        for step in (SlabSpan, OperatorStep):
            patch.setattr(step, "attend", planted(step))
        patch.setattr(model_check, "check_packed_logits", lambda *_: None)

    return plant


BUGS = (
    Bug("KV of a failed pass kept", Law.KV, failure_kept, ("sessions of a failed pass",)),
    Bug(
        "drafter's KV one short after full acceptance",
        Law.KV,
        drafter_one_short,
        ("drafts follow their prefix, none ahead",),
        harmless_to=("served rejection",),
    ),
    Bug("commits of a pause not told", Law.KV, pause_untold, ("drafts after rounds without",)),
    Bug(
        "drafter's q over ids that are not allowed",
        Law.ONE_DISTRIBUTION,
        drafter_of_any_id,
        harmless_to=("served allowed ids",),
    ),
    Bug("sliding window ignored", Law.ATTENTION, attending(window=None), ("greedy identity, gemma2",)),
    Bug("soft-cap ignored", Law.ATTENTION, attending(softcap=None), ("greedy identity, gemma2",)),
)
