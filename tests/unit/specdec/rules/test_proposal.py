"""q̂ is made first and sampled afterwards. Both sides read the same integers."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specdec.errors import FieldInvalid, InternalError, NoDistribution
from specdec.rules.draft import MAX_WEIGHT, SparseProbs
from specdec.rules.proposal import draw, propose, propose_certain, propose_each
from specdec.rules.speculation import Mode
from specdec.sampling.distribution import History, certain_tokens, probabilities
from specdec.sampling.params import SamplingParams
from tests.support.draft_laws import compress

RATIO_MODES = [Mode.REJECTION, Mode.BLOCK]


def batch(rows: int, vocab_size: int, seed: int = 0, scale: float = 2.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(rows, vocab_size, generator=generator)).softmax(-1)


def dense(probs: SparseProbs, vocab_size: int) -> Tensor:
    row = torch.zeros(vocab_size, dtype=torch.float64)
    row[probs.ids] = probs.weights.double() / probs.weights.sum()
    return row


@given(st.lists(st.floats(0, 1), min_size=1, max_size=80).filter(any), st.integers(1, 80))
def test_a_compressed_row_is_canonical_and_a_distribution(mass: list[float], k: int) -> None:
    (probs,) = compress(torch.tensor([mass], dtype=torch.float64), k)
    assert 1 <= len(probs.ids) == len(probs.weights) <= min(k, len(mass))
    assert bool((probs.ids[1:] > probs.ids[:-1]).all())
    assert 1 <= int(probs.weights.min()) <= int(probs.weights.max()) == MAX_WEIGHT
    assert float(dense(probs, len(mass)).sum()) == pytest.approx(1.0, abs=1e-12)
    assert all(mass[token] > 0 for token in probs.ids.tolist())


def test_the_most_likely_tokens_are_kept() -> None:
    q = batch(1, 500)
    (probs,) = compress(q, 64)
    assert set(probs.ids.tolist()) == set(q[0].topk(64).indices.tolist())


def test_compression_is_close_to_q_renormalised_over_its_support() -> None:
    q = batch(4, 300)
    for row, probs in zip(q, compress(q, 64), strict=True):
        kept = torch.zeros(300).double()
        kept[probs.ids] = row[probs.ids].double()
        assert float((dense(probs, 300) - kept / kept.sum()).abs().sum()) < 64 / MAX_WEIGHT


def test_weights_that_round_to_zero_are_left_out() -> None:
    (probs,) = compress(torch.tensor([[0.5, 0.5, 1e-9]]), 3)
    assert probs.ids.tolist() == [0, 1]


def test_a_one_hot_row_is_a_point_mass() -> None:
    (probs,) = compress(torch.eye(50)[[7]], 64)
    assert probs.ids.tolist() == [7]
    assert probs.weights.tolist() == [MAX_WEIGHT]


@given(st.integers(0, 2**20), st.integers(1, 20))
def test_a_draw_is_the_integer_inverse_cdf(seed: int, size: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.arange(size) * 3
    weights = torch.randint(0, 200, (size,), generator=generator)
    weights[0] = 1
    u = torch.rand(1, generator=generator, dtype=torch.float64)
    target = int(float(u) * int(weights.sum()))
    ballots = [token for token, weight in zip(ids.tolist(), weights.tolist(), strict=True) for _ in range(weight)]
    assert int(draw(ids[None], weights[None], u)) == ballots[target]


@pytest.mark.parametrize(("u", "token"), [(0.0, 1), (0.5, 3), (1 - 2.0**-53, 3)])
def test_an_id_of_weight_zero_is_never_drawn(u: float, token: int) -> None:
    ids, weights = torch.arange(5)[None], torch.tensor([[0, 2, 0, 2, 0]])
    assert int(draw(ids, weights, torch.tensor([u], dtype=torch.float64))) == token


@pytest.mark.parametrize("mode", RATIO_MODES)
def test_tokens_are_drawn_from_the_very_weights_that_are_sent(mode: Mode) -> None:
    """30,000 draws over eight ids; G over 7 degrees of freedom above 50 has chance 1e-8."""
    count = 30_000
    q = batch(1, 40).expand(count, -1)
    tokens, probs = propose(mode, q, range(count), [3] * count, 8, starts=[3] * count)
    assert all(torch.equal(row.ids, probs[0].ids) and torch.equal(row.weights, probs[0].weights) for row in probs)
    observed = torch.bincount(torch.tensor(tokens), minlength=40).double()
    expected = dense(probs[0], 40) * count
    support = expected > 0
    assert float(observed[~support].sum()) == 0
    g = 2 * torch.xlogy(observed[support], observed[support] / expected[support]).sum()
    assert float(g) < 50


@pytest.mark.parametrize("mode", [*RATIO_MODES, Mode.COUPLED])
def test_a_row_is_drafted_alike_alone_and_among_others(mode: Mode) -> None:
    q, seeds, positions = batch(32, 200), list(range(32)), list(range(100, 132))
    tokens, probs = propose(mode, q, seeds, positions, 16, starts=[100] * 32)
    for row in range(32):
        alone, law = propose(mode, q[[row]], [seeds[row]], [positions[row]], 16, starts=[100])
        assert alone == [tokens[row]]
        assert [each.ids.tolist() for each in law] == [each.ids.tolist() for each in probs[row : row + 1]]
        assert [each.weights.tolist() for each in law] == [each.weights.tolist() for each in probs[row : row + 1]]


@pytest.mark.parametrize("mode", [*RATIO_MODES, Mode.COUPLED])
def test_a_greedy_row_drafts_its_argmax(mode: Mode) -> None:
    tokens, _ = propose(mode, torch.eye(9)[[4, 0]], [1, 2], [5, 6], 64, starts=[5, 5])
    assert tokens == [4, 0]


def test_rows_of_one_possible_token_are_drafted_without_their_q() -> None:
    logits = torch.randn(5, 40, generator=torch.Generator().manual_seed(3))
    logits[2, [7, 30]] = logits.max() + 1.0  # the lowest id of a tie
    params = [SamplingParams(temperature=0.0, banned_token_ids=(int(logits[0].argmax()),))] * 5
    modes = [Mode.REJECTION, Mode.BLOCK, Mode.COUPLED, Mode.REJECTION, Mode.COUPLED]
    found = propose_certain(modes, *certain_tokens(logits, params, [History()] * 5))
    q = probabilities(logits, params, [History()] * 5)
    whole = propose_each(modes, q, [1] * 5, [9] * 5, 64, starts=[9] * 5)
    assert [token for token, _ in found] == [token for token, _ in whole]
    for (_, mine), (_, other) in zip(found, whole, strict=True):
        assert (mine is None) == (other is None)
        if mine is not None and other is not None:
            assert (mine.ids.tolist(), mine.weights.tolist()) == (other.ids.tolist(), other.weights.tolist())


def test_a_row_without_a_distribution_has_no_one_possible_token() -> None:
    logits = torch.zeros(2, 6)
    logits[1, 3] = float("nan")
    greedy = [SamplingParams(temperature=0.0)] * 2
    with pytest.raises(NoDistribution):
        propose_certain([Mode.COUPLED] * 2, *certain_tokens(logits, greedy, [History()] * 2))


def test_coupled_sends_no_distributions() -> None:
    assert propose(Mode.COUPLED, batch(3, 20), [1, 2, 3], [0, 0, 0], 8)[1] == []


def test_only_block_mode_draws_other_numbers_for_a_chain_begun_elsewhere() -> None:
    count = 200
    q = batch(1, 50).expand(count, -1)

    def tokens(mode: Mode, start: int) -> list[int]:
        return propose(mode, q, range(count), [9] * count, 50, starts=[start] * count)[0]

    assert tokens(Mode.BLOCK, 4) != tokens(Mode.BLOCK, 5)
    assert tokens(Mode.REJECTION, 4) == tokens(Mode.REJECTION, 5)


def test_block_mode_without_starts_is_refused() -> None:
    with pytest.raises(FieldInvalid, match="start"):
        propose(Mode.BLOCK, batch(1, 5), [0], [0], 4)


def test_mode_off_drafts_nothing() -> None:
    with pytest.raises(FieldInvalid):
        propose(Mode.OFF, batch(1, 5), [0], [0], 4)


@pytest.mark.parametrize("q", [torch.zeros(1, 4), torch.tensor([[float("nan"), 1.0]]), torch.ones(4)])
@pytest.mark.parametrize("mode", [Mode.REJECTION, Mode.COUPLED])
def test_a_q_that_is_no_distribution_is_refused(mode: Mode, q: Tensor) -> None:
    with pytest.raises(InternalError):
        propose(mode, q, [0], [0], 4)


def test_no_rows_have_no_drafts() -> None:
    assert propose_each([], torch.empty(0, 6), [], [], 4, []) == []
