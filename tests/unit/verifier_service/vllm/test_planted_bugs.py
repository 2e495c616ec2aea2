"""The law of a token judged in vLLM's layout, by G-tests; each bug that the glue could have is planted, and caught."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from specdec.rules.draft import NO_DRAFT, Draft, SparseProbs, Verdict
from specdec.rules.params import Mode, SamplingParams
from specdec.wire.generation import Speculation
from tests.conformance.g_test import g_test
from tests.unit.verifier_service.verifier_fakes import make_row
from verifier_service.batching.batch_plan import Row
from verifier_service.vllm.batch import PassRows
from verifier_service.vllm.judge import Lines, judge

SAMPLES = 600
P_VALUE = 1e-6
LAWS = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.4, 0.1, 0.2, 0.3]], dtype=torch.float64)
"""p of each of two rows, at every position."""
QS = ({0: 3, 1: 1}, {0: 1, 1: 3})
"""Weights that the drafts of each row are drawn by."""

Sent = Callable[[list[Draft]], list[int]]
Own = Callable[[Lines, int, Row], Row]


def drawn(seed: int) -> Draft:
    """One token drawn from the q of a row, with its q̂."""
    q = QS[seed % 2]
    (token,) = random.Random(seed).choices(list(q), list(q.values()))
    return Draft((token,), (SparseProbs(torch.tensor(list(q)), torch.tensor(list(q.values()))),))


def sampled(mode: Mode, sent: Sent) -> list[list[tuple[int]]]:
    """First tokens of two rows, many times in one batch; `sent` are the ids that vLLM computed, of all drafts."""
    drafts = [drawn(seed) for seed in range(2 * SAMPLES)]
    rows = {
        str(seed): make_row(
            str(seed), draft=draft, sampling=SamplingParams(seed=seed), speculation=Speculation(mode=mode)
        )
        for seed, draft in enumerate(drafts)
    }
    lines = Lines(list(rows), [1] * len(rows), sent(drafts))
    judged = judge(PassRows(rows, 4), lines, LAWS.log().repeat_interleave(2, dim=0).repeat(SAMPLES, 1).float())
    tokens: list[list[tuple[int]]] = [[], []]
    for seed in range(2 * SAMPLES):
        result = judged[str(seed)].result
        assert isinstance(result, Verdict)
        tokens[seed % 2].append((result.tokens[0],))
    return tokens


def worst(mode: Mode, sent: Sent) -> float:
    """The lower p-value of the two rows."""
    return min(g_test(tokens, law, 4) for tokens, law in zip(sampled(mode, sent), LAWS, strict=True))


def as_drafted(drafts: list[Draft]) -> list[int]:
    return [draft.tokens[0] for draft in drafts]


def placeholders(drafts: list[Draft]) -> list[int]:
    return [0] * len(drafts)


def exchanged(drafts: list[Draft]) -> list[int]:
    """Each row has the id that was drafted for the other."""
    return [drafts[place ^ 1].tokens[0] for place in range(len(drafts))]


@pytest.mark.parametrize("mode", [Mode.REJECTION, Mode.BLOCK])
def test_the_law_is_the_targets(mode: Mode) -> None:
    assert worst(mode, as_drafted) >= P_VALUE


def trusting(lines: Lines, index: int, row: Row) -> Row:
    """Whatever ids were computed are the draft: placeholders, a stale chain, those of another row."""
    first = sum(lines.counts[:index])
    return replace(row, draft=replace(row.draft, tokens=tuple(lines.drafts[first : first + lines.counts[index]])))


def dropping(lines: Lines, index: int, row: Row) -> Row:
    """A draft is dropped where other ids were computed, which happens more often for some drafts than for others."""
    same = row.draft.tokens == tuple(lines.drafts[index : index + 1])
    return row if same else replace(row, draft=NO_DRAFT)


def another_q(lines: Lines, index: int, row: Row) -> Row:
    """The verdict takes a q that the draft was not drawn by."""
    return replace(row, draft=replace(row.draft, probs=(SparseProbs(torch.arange(4), torch.ones(4).long()),)))


def another_place(lines: Lines, index: int) -> int:
    """The logits of the other row."""
    return 2 * (index ^ 1)


@pytest.mark.parametrize(
    ("sent", "name", "bug"),
    [
        (placeholders, "own", trusting),
        (exchanged, "own", trusting),
        (placeholders, "own", dropping),
        (as_drafted, "own", another_q),
        (as_drafted, "first", another_place),
    ],
    ids=[
        "placeholders taken as drafts",
        "drafts of another row",
        "foreign drafts dropped",
        "another q",
        "logits of another row",
    ],
)
def test_a_planted_bug_is_caught(sent: Sent, name: str, bug: Own, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lines, name, bug)
    assert worst(Mode.REJECTION, sent) < P_VALUE
