"""Properties of the pure rules, for any p, any q̂ and any number."""

from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specdec.rules.acceptance import block, block_h, block_pi, rejection, residual
from specdec.rules.draft import Draft, SparseProbs
from specdec.rules.multidraft import NONE, Siblings, with_replacement, without_replacement
from specdec.rules.proposal import draw, propose
from specdec.rules.speculation import Mode
from specdec.rules.verification import verify
from specdec.sampling.distribution import History, probabilities
from specdec.sampling.params import SamplingParams
from specdec.trees.tree import Tree, TreeDraft
from specdec.trees.verification import verify_tree
from tests.support.draft_laws import compress

LENIENCES = (1.0, 0.8, 0.4, 0.1)
MASSES = st.integers(2, 8).flatmap(
    lambda size: st.tuples(*[st.lists(st.floats(0, 1), min_size=size, max_size=size).filter(any)] * 2)
)
"""Two rows of equal width, not normalised."""
SAMPLED = (Siblings.WITH_REPLACEMENT, Siblings.WITHOUT_REPLACEMENT)
VOCAB = 12


@dataclass(frozen=True)
class Round:
    """One draft of γ tokens with all of its distributions."""

    p: Tensor
    """The target's distributions, float64 [γ + 1, V]."""
    draft: Draft
    seed: int


@st.composite
def rows(draw_: st.DrawFn, count: int, size: int) -> Tensor:
    """Draw distributions, some with zeros."""
    mass = draw_(
        st.lists(st.lists(st.integers(0, 9), min_size=size, max_size=size).filter(any), min_size=count, max_size=count)
    )
    table = torch.tensor(mass, dtype=torch.float64)
    return table / table.sum(1, keepdim=True)


@st.composite
def rounds(draw_: st.DrawFn) -> Round:
    """A draft of up to four tokens over up to six ids, drawn from its own q̂."""
    size, gamma = draw_(st.integers(2, 6)), draw_(st.integers(1, 4))
    q = compress(draw_(rows(gamma, size)), draw_(st.integers(1, size)))
    tokens = [draw_(st.sampled_from(law.ids.tolist())) for law in q]
    return Round(draw_(rows(gamma + 1, size)), Draft(tuple(tokens), tuple(q)), draw_(st.integers(0, 2**40)))


def q_rows(draft: Draft, size: int) -> Tensor:
    """Return q̂ of each position, dense [γ, V]."""
    dense = torch.zeros(len(draft.tokens), size, dtype=torch.float64)
    for row, law in zip(dense, draft.probs, strict=True):
        row[law.ids] = law.weights.double() / law.weights.sum()
    return dense


def normalised(masses: tuple[list[float], list[float]]) -> tuple[Tensor, Tensor]:
    """Return p and q."""
    p, q = (torch.tensor(mass, dtype=torch.float64) for mass in masses)
    return p / p.sum(), q / q.sum()


def distributions(rows: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return distributions [rows, VOCAB]. Equal seeds give equal rows."""
    generator = torch.Generator().manual_seed(seed)
    return (1.5 * torch.randn(rows, VOCAB, generator=generator)).to(dtype).softmax(-1)


@given(MASSES)
def test_a_draft_is_kept_with_the_overlap_of_p_and_q(masses: tuple[list[float], list[float]]) -> None:
    """Σ q·P(keep) = Σ min(p, q), where bisection reads P(keep) from the decision."""
    p, q = normalised(masses)
    p, q = p[q > 0][:, None], q[q > 0][:, None]
    low, high = torch.zeros_like(p), torch.ones_like(p)
    for _ in range(60):
        middle = (low + high) / 2
        kept = rejection(p, q, middle)[:, None] > 0
        low, high = torch.where(kept, middle, low), torch.where(kept, high, middle)
    assert float((q * low).sum()) == pytest.approx(float(torch.minimum(p, q).sum()), abs=1e-12)


@given(MASSES)
def test_the_residual_has_the_mass_that_rejection_lost(masses: tuple[list[float], list[float]]) -> None:
    p, q = normalised(masses)
    left = residual(p[None], torch.ones(1).double(), torch.arange(len(q))[None], q[None])
    lost = 1 - float(torch.minimum(p, q).sum())
    if float((p - q).clamp_min(0).sum()) > 0:
        assert float(left.sum()) == pytest.approx(lost, abs=1e-12)
        assert bool(((left[0] > 0) == (p > q)).all())
    else:
        assert torch.equal(left[0], p)


@pytest.mark.parametrize("siblings", SAMPLED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.integers(0, 2**62))
@settings(deadline=None, max_examples=30)
def test_a_chain_gets_the_chain_rules_verdict(
    siblings: Siblings, dtype: torch.dtype, gammas: list[int], seed: int
) -> None:
    seeds, positions = [seed + b for b in range(len(gammas))], [10 + b for b in range(len(gammas))]
    chains = []
    for b, gamma in enumerate(gammas):
        at = list(range(positions[b], positions[b] + gamma))
        tokens, probs = (
            propose(Mode.REJECTION, distributions(gamma, b), [seeds[b]] * gamma, at, 6) if gamma else ([], [])
        )
        chains.append(Draft(tuple(tokens), tuple(probs)))
    p = distributions(sum(gammas) + len(gammas), 5, dtype)
    as_trees = [
        TreeDraft(Tree.chain(len(chain.tokens)), chain.tokens, (*chain.probs, None) if chain.probs else ())
        for chain in chains
    ]
    expected = verify(Mode.REJECTION, p, chains, seeds, positions)
    for verdict, wanted in zip(verify_tree(siblings, p, as_trees, seeds, positions), expected, strict=True):
        assert verdict.path == tuple(range(wanted.accepted))
        assert verdict.tokens == wanted.tokens
        assert verdict.origins == wanted.origins


@given(rounds())
def test_pi_of_the_block_rule_is_at_least_what_the_token_rule_keeps(each: Round) -> None:
    """πᵢ, the mean probability of τ ≥ i, is at least the product of min(1, p/q̂) for any chain."""
    q = q_rows(each.draft, each.p.shape[1])
    at = torch.arange(len(q)), torch.tensor(each.draft.tokens)
    p_x, q_x = each.p[:-1][at][None], q[at][None]
    pi = block_pi(p_x, q_x)[0, 1:]
    token = (p_x / q_x).clamp_max(1.0)[0].cumprod(0)
    assert bool((pi >= token - 1e-12).all())


@given(rounds())
def test_thresholds_of_the_block_rule_are_chances(each: Round) -> None:
    size = each.p.shape[1]
    q = torch.cat([q_rows(each.draft, size), torch.zeros(1, size).double()])
    at = torch.arange(len(q) - 1), torch.tensor(each.draft.tokens)
    pi = block_pi(each.p[:-1][at][None], q[:-1][at][None])
    h = block_h(pi, each.p[None], q[None])
    assert bool(((h >= -1e-12) & (h <= 1 + 1e-12)).all())
    assert bool((h <= pi[:, 1:] + 1e-12).all())
    sure = [place for place, chance in enumerate(h[0].tolist(), start=1) if chance >= 1]
    assert int(block(h, torch.full_like(h, 1 - 2.0**-53))) == max(sure, default=0)


@given(rounds())
def test_lenience_only_adds_accepted_drafts(each: Round) -> None:
    kept = [
        verify(Mode.REJECTION, each.p, [each.draft], [each.seed], [7], [lenience])[0].accepted for lenience in LENIENCES
    ]
    assert all(strict <= lenient for strict, lenient in pairwise(kept))


@pytest.mark.parametrize("rule", [with_replacement, without_replacement])
@given(each=rounds(), u=st.floats(0, 1, exclude_max=True))
def test_one_sibling_is_token_rejection(rule: object, each: Round, u: float) -> None:
    q = q_rows(each.draft, each.p.shape[1])[:1]
    token = torch.tensor([[each.draft.tokens[0]]])
    number = torch.tensor([[u]], dtype=torch.float64)
    choice = rule(each.p[:1], torch.arange(q.shape[1])[None], q, token, number)  # type: ignore[operator]
    kept = int(rejection(each.p[:1].gather(1, token), q.gather(1, token), number))
    assert (int(choice.child) != NONE) == bool(kept)


@pytest.mark.parametrize("mode", [Mode.REJECTION, Mode.BLOCK])
@given(each=rounds(), data=st.data())
def test_other_names_for_the_ids_keep_as_many_drafts(mode: Mode, each: Round, data: st.DataObject) -> None:
    """Permutation equivariance: a renaming of the ids does not change what is kept."""
    names = torch.tensor(data.draw(st.permutations(range(each.p.shape[1]))))
    renamed = Draft(
        tuple(int(names[token]) for token in each.draft.tokens), tuple(_renamed(law, names) for law in each.draft.probs)
    )
    p = torch.zeros_like(each.p)
    p[:, names] = each.p
    (here,), (there,) = (
        verify(mode, law, [draft], [each.seed], [7]) for law, draft in ((each.p, each.draft), (p, renamed))
    )
    assert here.accepted == there.accepted


@given(rows(3, 5), st.permutations(range(5)), st.floats(0.1, 2.0), st.floats(0.1, 1.0))
def test_other_names_for_the_ids_rename_the_distribution(
    p: Tensor, names: list[int], temperature: float, top_p: float
) -> None:
    params = [SamplingParams(temperature=temperature, top_p=top_p)] * 3
    logits = (p + 0.01).log()
    here = probabilities(logits, params, [History()] * 3)
    there = probabilities(logits[:, names], params, [History()] * 3)
    torch.testing.assert_close(there, here[:, names], rtol=0, atol=1e-12)


@given(rows(1, 6), st.integers(1, 6), st.integers(0, 2**53 - 1))
def test_what_is_drawn_is_in_what_is_sent(q: Tensor, support: int, number: int) -> None:
    (sent,) = compress(q, support)
    token = int(draw(sent.ids[None], sent.weights[None], torch.tensor([number * 2.0**-53], dtype=torch.float64)))
    assert token in sent.ids.tolist()
    assert float(q[0, token]) > 0


def _renamed(law: SparseProbs, names: Tensor) -> SparseProbs:
    ids, order = names[law.ids].sort()
    return SparseProbs(ids, law.weights[order])
