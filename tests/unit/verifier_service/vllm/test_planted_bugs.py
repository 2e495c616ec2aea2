"""G-tests of the distribution of tokens judged in vLLM's layout detect each bug planted in the adapter."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
import torch

from specdec.rules.draft import NO_DRAFT, Draft, SparseProbs, Verdict
from specdec.rules.speculation import Mode
from specdec.sampling.params import SamplingParams
from specdec.wire.generation import Speculation
from tests.conformance.g_test import g_test
from tests.unit.verifier_service.verifier_fakes import make_row
from verifier_service.backends.batch_plan import Row
from verifier_service.vllm import judge as glue
from verifier_service.vllm.batch import PassRows
from verifier_service.vllm.judge import Lines, judge

SAMPLES = 600
P_VALUE = 1e-6
LAWS = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.4, 0.1, 0.2, 0.3]], dtype=torch.float64)
"""p of each of two rows, at every position."""
QS = ({0: 3, 1: 1}, {0: 1, 1: 3})
"""Weights from which the drafts of each row are drawn."""

Sent = Callable[[list[Draft]], list[int]]


def drawn(seed: int) -> Draft:
    """Return one token drawn from the q of a row, with its q̂."""
    q = QS[seed % 2]
    (token,) = random.Random(seed).choices(list(q), list(q.values()))
    return Draft((token,), (SparseProbs(torch.tensor(list(q)), torch.tensor(list(q.values()))),))


def sampled(mode: Mode, sent: Sent, layout: type[Lines]) -> list[list[tuple[int]]]:
    """Return first tokens of two rows, many times in one batch. `sent` gives the ids that vLLM computed."""
    drafts = [drawn(seed) for seed in range(2 * SAMPLES)]
    rows = {
        str(seed): make_row(
            str(seed), draft=draft, sampling=SamplingParams(seed=seed), speculation=Speculation(mode=mode)
        )
        for seed, draft in enumerate(drafts)
    }
    lines = layout(list(rows), [1] * len(rows), sent(drafts))
    judged = judge(PassRows(rows, 4), lines, LAWS.log().repeat_interleave(2, dim=0).repeat(SAMPLES, 1).float())
    tokens: list[list[tuple[int]]] = [[], []]
    for seed in range(2 * SAMPLES):
        result = judged[str(seed)].result
        assert isinstance(result, Verdict)
        tokens[seed % 2].append((result.tokens[0],))
    return tokens


def worst(mode: Mode, sent: Sent, layout: type[Lines] = Lines) -> float:
    """Return the lower p-value of the two rows."""
    return min(g_test(tokens, law, 4) for tokens, law in zip(sampled(mode, sent, layout), LAWS, strict=True))


def as_drafted(drafts: list[Draft]) -> list[int]:
    return [draft.tokens[0] for draft in drafts]


def placeholders(drafts: list[Draft]) -> list[int]:
    return [0] * len(drafts)


def exchanged(drafts: list[Draft]) -> list[int]:
    """Give each row the id drafted for the other row."""
    return [drafts[place ^ 1].tokens[0] for place in range(len(drafts))]


@pytest.mark.parametrize("mode", [Mode.REJECTION, Mode.BLOCK])
def test_the_law_is_the_targets(mode: Mode) -> None:
    assert worst(mode, as_drafted) >= P_VALUE


def trusting(row: Row, computed: Sequence[int]) -> Row:
    """Trust any computed ids as the draft: placeholders, a stale chain, another row's ids."""
    return replace(row, draft=replace(row.draft, tokens=tuple(computed)))


def dropping(row: Row, computed: Sequence[int]) -> Row:
    """Drop a draft if other ids were computed, which happens more often for some drafts than for others."""
    return row if row.draft.tokens == tuple(computed) else replace(row, draft=NO_DRAFT)


def another_q(row: Row, _: Sequence[int]) -> Row:
    """Judge with a q that the draft was not drawn from."""
    return replace(row, draft=replace(row.draft, probs=(SparseProbs(torch.arange(4), torch.ones(4).long()),)))


@pytest.mark.parametrize(
    ("sent", "bug"),
    [(placeholders, trusting), (exchanged, trusting), (placeholders, dropping), (as_drafted, another_q)],
    ids=["placeholders taken as drafts", "drafts of another row", "foreign drafts dropped", "another q"],
)
def test_a_planted_bug_is_caught(
    sent: Sent, bug: Callable[[Row, Sequence[int]], Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(glue, "_computed", bug)
    assert worst(Mode.REJECTION, sent) < P_VALUE


class ExchangedLines(Lines):
    """Gives each request the logits of another one."""

    def __iter__(self) -> Iterator[tuple[str, int, Sequence[int]]]:
        each = list(super().__iter__())
        for place, (request, _, drafts) in enumerate(each):
            yield request, each[place ^ 1][1], drafts


def test_logits_of_another_row_are_caught() -> None:
    assert worst(Mode.REJECTION, as_drafted, ExchangedLines) < P_VALUE
