"""Verdicts on vLLM's batches: assignment of logits to rows, and which drafts are judged."""

import pytest
import torch

from specdec.errors import InternalError
from specdec.rules.draft import Draft, Verdict
from specdec.rules.speculation import Mode
from specdec.sampling.params import SamplingParams
from specdec.wire.generation import Speculation
from tests.unit.verifier_service.verifier_fakes import make_row
from verifier_service.backends.batch_plan import Row
from verifier_service.vllm.batch import Judged, PassRows
from verifier_service.vllm.judge import Lines, judge, tokens_of

VOCABULARY = 8
GREEDY = {"sampling": SamplingParams(temperature=0.0), "speculation": Speculation(mode=Mode.COUPLED)}


def greedy(name: str, *draft: int) -> Row:
    return make_row(name, draft=Draft(draft), **GREEDY)


def likely(*tokens: int, width: int = VOCABULARY) -> torch.Tensor:
    """Return logits whose line i has its maximum at tokens[i]."""
    return torch.nn.functional.one_hot(torch.tensor(tokens), width).float() * 9.0


def verdict(judged: dict[str, Judged], request: str) -> Verdict:
    result = judged[request].result
    assert isinstance(result, Verdict)
    return result


def test_each_row_is_judged_by_its_own_logits() -> None:
    batch = PassRows({"a": greedy("a", 1, 2), "b": greedy("b"), "c": greedy("c", 6)}, VOCABULARY)
    lines = Lines(("a", "b", "c"), (2, 0, 1), (1, 2, 6))
    judged = judge(batch, lines, likely(1, 2, 3, 4, 5, 7))
    assert verdict(judged, "a").tokens == (1, 2, 3)
    assert verdict(judged, "b").tokens == (4,)
    assert verdict(judged, "c").tokens == (5,)
    assert tokens_of(judged, lines).tolist() == [[1, 2, 3], [4, -1, -1], [5, -1, -1]]


def test_placeholders_of_a_row_without_a_draft_are_not_judged() -> None:
    """vLLM pads with ids that the target may agree with. As drafts, they would be accepted."""
    batch = PassRows({"a": greedy("a")}, VOCABULARY)
    judged = judge(batch, Lines(("a",), (2,), (0, 0)), likely(0, 0, 3))
    assert verdict(judged, "a").tokens == (0,)
    assert (verdict(judged, "a").drafted, judged["a"].offered) == (0, 0)


@pytest.mark.parametrize("sent", [(0, 0), (-1, -1), (2, 1), (1, 1)])
def test_other_ids_than_those_of_the_row_are_an_error_of_that_row_alone(sent: tuple[int, int]) -> None:
    batch = PassRows({"a": greedy("a", 1, 2), "b": greedy("b", 4)}, VOCABULARY)
    judged = judge(batch, Lines(("a", "b"), (2, 1), (*sent, 4)), likely(1, 2, 3, 4, 5))
    assert isinstance(judged["a"].result, InternalError)
    assert verdict(judged, "b").tokens == (4, 5)


def test_a_draft_that_was_cut_is_judged_as_far_as_it_was_computed() -> None:
    batch = PassRows({"a": greedy("a", 1, 2, 3)}, VOCABULARY)
    judged = judge(batch, Lines(("a",), (1,), (1,)), likely(1, 5))
    assert verdict(judged, "a").tokens == (1, 5)
    assert (verdict(judged, "a").drafted, judged["a"].offered) == (1, 1)


def test_a_request_that_reads_its_prompt_gets_no_verdict() -> None:
    batch = PassRows({"b": greedy("b")}, VOCABULARY)
    lines = Lines(("a", "b"), (0, 0), ())
    judged = judge(batch, lines, likely(3, 4))
    assert list(judged) == ["b"]
    assert tokens_of(judged, lines).tolist() == [[0], [4]]


def test_padding_ids_of_the_vocabulary_are_never_drawn() -> None:
    judged = judge(PassRows({"a": greedy("a")}, VOCABULARY), Lines(("a",), (0,), ()), likely(VOCABULARY + 1, width=12))
    assert verdict(judged, "a").tokens[0] < VOCABULARY


def test_a_row_without_a_distribution_leaves_the_others_alone() -> None:
    logits = torch.cat([torch.full((1, VOCABULARY), float("nan")), likely(4)])
    lines = Lines(("a", "b"), (0, 0), ())
    judged = judge(PassRows({"a": greedy("a"), "b": greedy("b")}, VOCABULARY), lines, logits)
    assert isinstance(judged["a"].result, InternalError)
    assert verdict(judged, "b").tokens == (4,)
    assert tokens_of(judged, lines).tolist() == [[0], [4]]


def test_a_draft_that_cannot_be_judged_costs_its_round_the_drafts_alone() -> None:
    sampled = {"sampling": SamplingParams(temperature=1.0, seed=1), "speculation": Speculation(mode=Mode.REJECTION)}
    broken = make_row("a", draft=Draft((1,), ()), **sampled)  # a draft of this mode has a q̂
    judged = judge(PassRows({"a": broken}, VOCABULARY), Lines(("a",), (1,), (1,)), likely(1, 2))
    assert len(verdict(judged, "a").tokens) == 1
    assert verdict(judged, "a").drafted < judged["a"].offered
