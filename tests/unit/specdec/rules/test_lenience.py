"""Lenience is off at 1, to the bit. Below 1 a token's probability stays under p/ℓ and acceptance only grows."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specdec.errors import FieldInvalid, InternalError
from specdec.rules.acceptance import rejection, residual
from specdec.rules.draft import NO_DRAFT, Draft, SparseProbs
from specdec.rules.lenience import lenient_greedy
from specdec.rules.proposal import propose
from specdec.rules.speculation import Mode, Speculation
from specdec.rules.verification import verify
from specdec.sampling.distribution import History, probabilities
from specdec.sampling.params import SamplingParams

VOCAB = 30
LENIENCES = [0.01, 0.1, 0.3, 0.5, 0.9, 1.0]
GREEDY = SamplingParams(temperature=0.0)

MASSES = st.integers(2, 8).flatmap(
    lambda size: st.tuples(*[st.lists(st.floats(0, 1), min_size=size, max_size=size).filter(any)] * 2)
)


def distributions(rows: int, seed: int, scale: float = 2.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(rows, VOCAB, generator=generator, dtype=torch.float64)).softmax(-1)


def drafts(count: int, gamma: int = 3) -> list[Draft]:
    made = []
    for seed in range(count):
        at = list(range(10, 10 + gamma))
        tokens, probs = propose(Mode.REJECTION, distributions(gamma, 500 + seed), [seed] * gamma, at, 8)
        made.append(Draft(tuple(tokens), tuple(probs)))
    return made


def emitted(p: Tensor, q: Tensor, lenience: float) -> Tensor:
    """Return the exact law of one lenient round's first token [V], with thresholds bisected from the real decision."""
    ell = torch.full_like(p, lenience)
    low, high = torch.zeros_like(p), torch.ones_like(p)
    for _ in range(60):
        middle = (low + high) / 2
        kept = rejection(p[:, None], q[:, None], middle[:, None], ell) > 0
        low, high = torch.where(kept, middle, low), torch.where(kept, high, middle)
    rest = residual(p[None], torch.ones(1).double(), torch.arange(len(q))[None], q[None])[0]
    return q * low + (q * (1 - low)).sum() * rest / rest.sum()


@given(MASSES, st.sampled_from(LENIENCES))
@settings(deadline=None)
def test_no_token_gets_more_than_p_over_lenience(masses: tuple[list[float], list[float]], lenience: float) -> None:
    p, q = (torch.tensor(mass, dtype=torch.float64) / sum(mass) for mass in masses)
    law = emitted(p, q, lenience)
    assert float(law.sum()) == pytest.approx(1, abs=1e-9)
    assert bool((law <= p / lenience + 1e-12).all())
    if lenience == 1.0:
        torch.testing.assert_close(law, p, rtol=0, atol=1e-12)


def test_the_bound_is_reached() -> None:
    p, q = torch.tensor([0.1, 0.9]).double(), torch.tensor([0.9, 0.1]).double()
    assert float(emitted(p, q, 0.5)[0]) == pytest.approx(0.2)


def test_lenience_one_is_the_exact_path_to_the_bit() -> None:
    p, batch, seeds, positions = distributions(4 * 200, 1), drafts(200), list(range(200)), [10] * 200
    exact = verify(Mode.REJECTION, p, batch, seeds, positions)
    assert verify(Mode.REJECTION, p, batch, seeds, positions, [1.0] * 200) == exact
    assert verify(Mode.BLOCK, p, batch, seeds, positions, [1.0] * 200) == verify(Mode.BLOCK, p, batch, seeds, positions)


def test_less_is_more_accepted_by_every_draft() -> None:
    p, batch, seeds, positions = distributions(4 * 200, 1), drafts(200), list(range(200)), [10] * 200
    counts = [
        [verdict.accepted for verdict in verify(Mode.REJECTION, p, batch, seeds, positions, [lenience] * 200)]
        for lenience in LENIENCES
    ]
    for more, fewer in pairwise(counts):
        assert all(a >= b for a, b in zip(more, fewer, strict=True))
        assert sum(more) > sum(fewer)


def test_each_draft_has_a_lenience_of_its_own() -> None:
    p, batch, seeds, positions = distributions(4 * 40, 1), drafts(40), list(range(40)), [10] * 40
    strict = verify(Mode.REJECTION, p, batch, seeds, positions)
    loose = verify(Mode.REJECTION, p, batch, seeds, positions, [0.05] * 40)
    mixed = verify(Mode.REJECTION, p, batch, seeds, positions, [0.05 if b % 2 else 1.0 for b in range(40)])
    assert mixed == [(loose if b % 2 else strict)[b] for b in range(40)]


def test_an_impossible_token_stays_impossible_at_any_lenience() -> None:
    none, some = torch.zeros(1, 1).double(), torch.ones(1, 1).double()
    assert int(rejection(none, some, none, torch.tensor([1e-9]).double())) == 0


@pytest.mark.parametrize("lenience", [0.0, -0.1, 1.1, float("nan")])
def test_a_lenience_out_of_range_is_refused_by_name(lenience: float) -> None:
    for refused in (
        lambda: Speculation(lenience=lenience),
        lambda: verify(Mode.REJECTION, distributions(1, 1), [NO_DRAFT], [0], [0], [lenience]),
    ):
        with pytest.raises(FieldInvalid) as error:
            refused()
        assert error.value.param == "speculation.lenience"


@pytest.mark.parametrize("mode", [Mode.BLOCK, Mode.COUPLED, Mode.OFF])
def test_only_rejection_allows_lenience(mode: Mode) -> None:
    assert Speculation(mode, lenience=1.0).lenience == Speculation(mode).lenience == 1.0
    for refused in (
        lambda: Speculation(mode, lenience=0.5),
        lambda: verify(mode, distributions(1, 1), [NO_DRAFT], [0], [0], [0.5]),
    ):
        with pytest.raises(FieldInvalid) as error:
            refused()
        assert error.value.param == "speculation.lenience"


def test_as_many_leniences_as_drafts() -> None:
    with pytest.raises(InternalError, match="1 drafts, 2 leniences"):
        verify(Mode.REJECTION, distributions(1, 1), [NO_DRAFT], [0], [0], [1.0, 1.0])


def point_draft(*tokens: int) -> Draft:
    return Draft(tokens, tuple(SparseProbs(torch.tensor([token]), torch.tensor([1])) for token in tokens))


def greedy_round(logits: Tensor, draft: Draft, lenience: float, params: SamplingParams = GREEDY) -> tuple[int, ...]:
    rows = len(draft.tokens) + 1
    histories = [History((), draft.tokens[:step]) for step in range(rows)]
    p = probabilities(logits, [params] * rows, histories)
    lenient = lenient_greedy(p, logits, [params] * rows, histories, [draft], [lenience])
    (verdict,) = verify(Mode.REJECTION, lenient, [draft], [1], [10], [lenience])
    return verdict.tokens


# After a context the target's probabilities are .5, .3 and .2 for any draft.
LOGITS = torch.tensor([[0.5, 0.3, 0.2]] * 3).double().log()


@pytest.mark.parametrize(
    ("lenience", "tokens"), [(1.0, (0,)), (0.61, (0,)), (0.6 - 1e-9, (1, 0)), (0.41, (1, 0)), (0.4 - 1e-9, (1, 2, 0))]
)
def test_at_temperature_zero_a_draft_is_kept_when_it_is_nearly_the_best(
    lenience: float, tokens: tuple[int, ...]
) -> None:
    assert greedy_round(LOGITS, point_draft(1, 2), lenience) == tokens


def test_at_temperature_zero_lenience_one_leaves_even_a_tie_alone() -> None:
    tie = torch.zeros(2, 3)
    assert greedy_round(tie, point_draft(2), 1.0) == (0,)
    assert greedy_round(tie, point_draft(2), 0.999) == (2, 0)


def test_what_the_filters_take_out_is_never_nearly_the_best() -> None:
    assert greedy_round(LOGITS[:2], point_draft(2), 1e-9) == (2, 0)
    assert greedy_round(LOGITS[:2], point_draft(2), 1e-9, SamplingParams(temperature=0.0, top_k=2)) == (0,)


def test_penalties_count_before_nearly_the_best_is_judged() -> None:
    """The first draft is token 1. The penalty then takes it far from the best, so it is not kept twice."""
    penalised = SamplingParams(temperature=0.0, presence_penalty=2.0)
    assert greedy_round(LOGITS, point_draft(1, 1), 0.5, penalised) == (1, 0)
    assert greedy_round(LOGITS, point_draft(1, 1), 0.5) == (1, 1, 0)


def test_only_lenient_greedy_rows_with_a_draft_are_moved() -> None:
    logits = LOGITS.repeat(2, 1)
    params = [GREEDY] * 3 + [SamplingParams()] * 3
    histories = [History()] * 6
    p = probabilities(logits, params, histories)
    before, pair = p.clone(), [point_draft(1, 1), point_draft(1, 1)]
    moved = lenient_greedy(p, logits, params, histories, pair, [0.5, 0.5])
    assert torch.equal(p, before)
    assert moved[:2].tolist() == [[0.0, 1.0, 0.0]] * 2
    assert torch.equal(moved[2:], p[2:])
    assert lenient_greedy(p, logits, params, histories, pair, [1.0, 1.0]) is p
    with pytest.raises(InternalError, match="do not fit"):
        lenient_greedy(p, logits, params, histories, pair[:1], [0.5])
