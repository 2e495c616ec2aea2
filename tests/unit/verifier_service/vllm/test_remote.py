"""A target in another process, here a thread of this one, receives rows and returns results."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path
from typing import cast

import pytest
import torch

from specdec.engine.kv.pool import KvMemory
from specdec.errors import ConfigError, InternalError
from specdec.grammar.state import GrammarState
from specdec.rules.draft import Draft, SparseProbs, Verdict
from specdec.sampling.params import SamplingParams
from specdec.serving.settings import ModelSettings
from tests.unit.verifier_service.verifier_fakes import continuation, make_row, point_mass
from tests.unit.verifier_service.vllm.remote_pair import Pair
from verifier_service.backends.batch_plan import HeadDraft, HeadUse, Outcome, Row
from verifier_service.backends.model_step import ModelStep, TargetLost
from verifier_service.config import VerifierSettings
from verifier_service.vllm.messages import Report
from verifier_service.vllm.remote import RemoteModel, open_target
from verifier_service.vllm.shared_flags import SharedFlags, shared_memory

ONLY_FIVE = b"\x20".ljust(8, b"\0")
"""A mask of ids below 16."""


def test_it_admits_what_fits_into_an_empty_engine(pair: Pair) -> None:
    assert pair.remote.can_ever_admit(100)
    assert not pair.remote.can_ever_admit(101)


def test_a_step_comes_back_with_the_rows_that_it_was_asked_for(pair: Pair) -> None:
    admission = make_row("a", (3,), 0)
    step = pair.run(admission)
    assert (step.results, step.running, step.queried, step.found) == ({admission: None}, 1, 1, {"a": 0})
    row = make_row("a", (3,))
    step = pair.run(row)
    outcome = step.results[row]
    assert isinstance(outcome, Outcome)
    assert (outcome.verdict.tokens, outcome.offered, outcome.started) == (continuation(3, 1), 0, step.started)
    assert [(chunk.row, chunk.start, chunk.count) for chunk in step.chunks] == [(row, 0, 1)]
    assert step.seconds > 0.0
    assert step.memory == pair.engine.memory


def test_only_new_tokens_travel_and_all_arrive(pair: Pair) -> None:
    pair.admit("a")
    tokens = [3, *continuation(3, 1)]
    pair.run(make_row("a", (3,)))
    pair.run(make_row("a", tokens))
    assert [row.tokens for rows in pair.model.seen for row in rows] == [(3,), (3,), tuple(tokens)]
    assert [row.call for rows in pair.model.seen for row in rows] == [make_row("a").call] * 3


def test_a_sequence_that_comes_again_is_a_new_one(pair: Pair) -> None:
    pair.admit("a")
    pair.run(ended=["a"])
    assert pair.engine.held == {}
    pair.run(make_row("a", (5, 6), 0))
    assert pair.model.seen[-1][0].tokens == (5, 6)


def test_drafts_arrive_with_their_probabilities(pair: Pair) -> None:
    pair.admit("a")
    truth = continuation(3, 3)
    two = SparseProbs(torch.tensor([2, truth[1]]), torch.tensor([7, 65535]))
    row = make_row("a", (3,), draft=Draft(truth[:2], (point_mass(truth[0]).probs[0], two)))
    outcome = pair.run(row).results[row]
    assert isinstance(outcome, Outcome)
    assert (outcome.verdict.tokens, outcome.offered) == (truth, 2)
    arrived = pair.model.seen[-1][0].draft
    assert isinstance(arrived, Draft)
    assert [(each.ids.tolist(), each.weights.tolist()) for each in arrived.probs] == [
        (each.ids.tolist(), each.weights.tolist()) for each in cast("Draft", row.draft).probs
    ]


def test_log_probabilities_come_back(pair: Pair) -> None:
    pair.run(make_row("a", (3,), 0, logprobs=2))
    row = make_row("a", (3,), logprobs=2)
    outcome = pair.run(row).results[row]
    assert isinstance(outcome, Outcome)
    assert len(outcome.verdict.logprobs[0].top) == 2


def test_the_use_of_a_head_arrives(pair: Pair) -> None:
    pair.admit("a")
    pair.run(replace(make_row("a", (3,)), head=HeadUse(follows=True, gamma=2)))
    assert [row.head for rows in pair.model.seen for row in rows] == [HeadUse(), HeadUse(follows=True, gamma=2)]


def test_the_draft_of_a_head_comes_back_without_its_probabilities() -> None:
    row = make_row("a")
    made = Outcome(Verdict((5, 6), 1, 1), 1.0, 2.0, 1, HeadDraft(point_mass(5), 0.5))
    step = ModelStep({row: made}, (), 1.0, 2.0, 1, 0, 0, {}, KvMemory(1, 1, 0))
    back = Report.of(step, None).step({"a": row}).results[row]
    assert isinstance(back, Outcome)
    assert back.drafted is not None
    assert (back._replace(drafted=None), back.drafted.seconds) == (made._replace(drafted=None), 0.5)
    assert (back.drafted.draft.tokens, back.drafted.draft.probs) == ((5,), ())


def test_a_row_that_fails_comes_back_with_its_error(pair: Pair) -> None:
    pair.admit("a")
    pair.engine.nan.add("a")
    row = make_row("a", (3,))
    assert isinstance(pair.run(row).results[row], InternalError)


class WrittenState:
    """A state that allows all ids below its limit, or fails."""

    def __init__(self, *masks: bytes | None) -> None:
        self._masks = masks

    def masks(self, output: Sequence[int], drafts: Sequence[int] = ()) -> list[bytes | None]:
        if not self._masks:
            raise RuntimeError("a bug")
        return list(self._masks)


def of_grammar(*masks: bytes | None, draft: Draft | None = None) -> Row:
    row = make_row("a", (3,), draft=draft or Draft(), sampling=SamplingParams(temperature=0.0), prompt_len=1)
    return replace(row, grammar=cast("GrammarState", WrittenState(*masks)))


def test_the_masks_of_a_grammar_hold_there(pair: Pair) -> None:
    pair.admit("a")
    row = of_grammar(ONLY_FIVE, None, draft=point_mass(5))
    outcome = pair.run(row).results[row]
    assert isinstance(outcome, Outcome)
    assert outcome.verdict.tokens[0] == 5
    seen = pair.model.seen[-1][0].grammar
    assert seen is not None
    assert seen.masks((), ()) == [ONLY_FIVE]


def test_a_grammar_that_fails_fails_its_own_row(pair: Pair) -> None:
    pair.admit("a", "b")
    bad, good = of_grammar(), make_row("b", (3,))
    results = pair.run(bad, good).results
    assert isinstance(results[bad], InternalError)
    assert isinstance(results[good], Outcome)


def test_a_process_that_is_lost_is_a_lost_target(pair: Pair) -> None:
    pair.remote._connection.close()
    with pytest.raises(TargetLost):
        pair.admit("a")


async def test_a_process_that_ends_while_nothing_runs_is_noticed() -> None:
    memory, (ours, _) = shared_memory(), Pipe()
    with subprocess.Popen([sys.executable, "-c", ""]) as process:  # noqa: ASYNC220 - the model has such a one
        async with asyncio.timeout(60):
            with pytest.raises(TargetLost, match="ended with 0"):
                await RemoteModel(process, ours, SharedFlags(memory), 1).watch()
    os.close(memory)


def test_an_environment_without_vllm_is_refused_by_name(tmp_path: Path) -> None:
    settings = VerifierSettings(model=ModelSettings(path=tmp_path), backend="vllm")
    with pytest.raises(ConfigError, match="vllm is not installed in this environment"):
        open_target(settings)
