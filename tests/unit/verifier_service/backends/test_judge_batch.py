"""Verdicts on a batch match those on each row alone, and those computed from the distributions."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

import pytest
import torch
from torch import Tensor

from specdec.errors import FieldInvalid, NoDistribution, TokenOutOfRange
from specdec.rules.draft import NO_DRAFT, Draft
from specdec.rules.proposal import propose
from specdec.rules.speculation import Mode, Speculation
from specdec.rules.verification import verify_each
from specdec.sampling import cache
from specdec.sampling.distribution import History, probabilities
from specdec.sampling.params import SamplingParams
from tests.unit.verifier_service.verifier_fakes import make_row
from verifier_service.backends import target_pass
from verifier_service.backends.batch_plan import Row
from verifier_service.backends.target_pass import judge_batch

_TOKENS = (5, 3, 8, 1)


def mixed(vocab_size: int) -> tuple[list[Row], Tensor]:
    """Return rows of every mode, at temperatures 0 and above, with and without drafts; and their logits."""
    generator = torch.Generator().manual_seed(vocab_size)
    rows, logits = list[Row](), list[Tensor]()
    for index in range(60):
        mode, gamma = list(Mode)[index % 4], 0 if index % 4 == 0 else (0, 1, 4)[index // 4 % 3]
        sampling = SamplingParams(
            temperature=(0.0, 1.0, 0.7)[index % 3],
            seed=1000 + index,
            top_p=(1.0, 0.9)[index // 7 % 2],
            presence_penalty=(0.0, 0.5)[index // 5 % 2],
        )
        own = 3 * torch.randn(gamma + 1, vocab_size, generator=generator)
        near = own[:gamma] + torch.randn(gamma, vocab_size, generator=generator)
        draft = _drawn(mode, near, sampling) if gamma else NO_DRAFT
        speculation = Speculation(mode, lenience=0.5 if mode is Mode.REJECTION and index % 5 == 0 else 1.0)
        speculation, most = replace(speculation, detail=index % 11 == 0), (None, 2)[index % 2]
        name = f"s{index}"
        rows.append(make_row(name, _TOKENS, draft=draft, sampling=sampling, speculation=speculation, logprobs=most))
        logits.append(own)
    return rows, torch.cat(logits)


def _drawn(mode: Mode, logits: Tensor, sampling: SamplingParams) -> Draft:
    count = len(logits)
    q = probabilities(logits, [sampling] * count, [History()] * count)
    at = list(range(len(_TOKENS), len(_TOKENS) + count))
    tokens, laws = propose(mode, q, [sampling.seed] * count, at, 32, starts=at[:1] * count)
    return Draft(tuple(tokens), tuple(laws))


def parts(rows: Sequence[Row], logits: Tensor) -> Iterator[tuple[Row, Tensor]]:
    starts = accumulate((len(row.draft.tokens) + 1 for row in rows), initial=0)
    for row, (start, stop) in zip(rows, pairwise(starts), strict=True):
        yield row, logits[start:stop]


@pytest.mark.parametrize("vocab_size", [300, 20_011])
@pytest.mark.parametrize("numbers", [2**20, 50_000])
def test_a_batch_is_judged_as_each_row_alone(vocab_size: int, numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, logits = mixed(vocab_size)
    alone = [judge_batch([row], own)[0] for row, own in parts(rows, logits)]
    monkeypatch.setattr(cache, "_NUMBERS", numbers)
    assert judge_batch(rows, logits) == alone
    assert judge_batch(rows[::-1], torch.cat([own for _, own in list(parts(rows, logits))[::-1]])) == alone[::-1]


def test_tokens_at_temperature_0_are_those_of_the_distributions() -> None:
    rows, logits = mixed(300)
    kept = [(row, own) for row, own in parts(rows, logits) if row.call.sampling.temperature == 0.0]
    exact = [(row, own) for row, own in kept if not row.call.speculation.lossy]
    for row, own in exact:
        params = [row.call.sampling] * len(own)
        p = probabilities(own, params, list(target_pass._histories(row)))
        assert isinstance(row.draft, Draft)
        (wanted,) = verify_each([row.call.speculation.mode], p, [row.draft], [row.call.sampling.seed], [row.goal])
        (found,) = judge_batch([row], own)
        assert (found.tokens, found.accepted, found.drafted) == (wanted.tokens, wanted.accepted, wanted.drafted)
    assert any(row.draft.tokens for row, _ in exact)


def test_rows_at_temperature_0_need_no_distributions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_pass, "probabilities", pytest.fail)
    greedy = SamplingParams(temperature=0.0)
    (verdict,) = judge_batch([make_row("s", _TOKENS, sampling=greedy)], torch.tensor([[0.0, 2.0, 2.0]]))
    assert verdict.tokens == (1,)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_row_without_a_distribution_is_refused_at_every_temperature(bad: float) -> None:
    logits = torch.full((1, 300), bad)
    for temperature in (0.0, 1.0):
        row = make_row("s", _TOKENS, sampling=SamplingParams(temperature=temperature))
        with pytest.raises(NoDistribution):
            judge_batch([row], logits)


def test_at_temperature_0_a_verdict_ends_before_a_row_without_a_law() -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(1))
    best = logits.argmax(-1).tolist()
    logits[1, 7] = float("nan")
    draft = Draft(tuple(best[:2]))
    row = make_row(
        "s", _TOKENS, draft=draft, sampling=SamplingParams(temperature=0.0), speculation=Speculation(Mode.COUPLED)
    )
    (verdict,) = judge_batch([row], logits)
    assert (verdict.tokens, verdict.accepted) == ((best[0],), 1)


def test_malformed_drafts_are_refused_at_temperature_0() -> None:
    greedy, logits = SamplingParams(temperature=0.0), torch.zeros(2, 50)
    for draft, mode, error in (
        (Draft((99,)), Mode.COUPLED, TokenOutOfRange),
        (Draft((9,)), Mode.REJECTION, FieldInvalid),
        (Draft((9,)), Mode.OFF, FieldInvalid),
    ):
        row = make_row("s", _TOKENS, draft=draft, sampling=greedy, speculation=Speculation(mode))
        with pytest.raises(error):
            judge_batch([row], logits)
