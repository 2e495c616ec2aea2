"""One call for a ragged batch: a verdict depends only on its draft's rows, and invalid input is named."""

from statistics import stdev

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specdec.errors import FieldInvalid, InternalError, SpecdecError, TokenOutOfRange
from specdec.planning.gamma import AcceptanceEstimate
from specdec.rules.checks import check_drafts
from specdec.rules.draft import NO_DRAFT, Draft, SparseProbs, Verdict
from specdec.rules.speculation import Mode, Origin
from specdec.rules.verification import verify, verify_each
from tests.unit.specdec.rules.random_drafts import DRAFTING, VOCAB, distributions, drafted

RATIO = [Mode.REJECTION, Mode.BLOCK]


def point_mass(token: int) -> SparseProbs:
    return SparseProbs(torch.tensor([token]), torch.tensor([1]))


def law(ids: list[int], weights: list[int]) -> SparseProbs:
    return SparseProbs(torch.tensor(ids, dtype=torch.int64), torch.tensor(weights, dtype=torch.int64))


@pytest.mark.parametrize("mode", DRAFTING)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_verdict_is_the_same_alone_and_in_a_batch_of_32(mode: Mode, dtype: torch.dtype) -> None:
    gammas = [b % 6 for b in range(32)]
    drafts = [drafted(mode, gamma, seed=b, support=1 + b) for b, gamma in enumerate(gammas)]
    rows = [distributions(gamma + 1, seed=b, dtype=dtype) for b, gamma in enumerate(gammas)]
    together = verify(mode, torch.cat(rows), drafts, list(range(32)), [10] * 32)
    alone = [verify(mode, rows[b], [drafts[b]], [b], [10])[0] for b in range(32)]
    assert together == alone
    assert {verdict.accepted for verdict in together} > {0}


@pytest.mark.parametrize("mode", DRAFTING)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.integers(0, 2**63), st.integers(0, 2**31))
@settings(deadline=None, max_examples=30)
def test_a_verdict_keeps_a_prefix_and_adds_one_token(mode: Mode, gammas: list[int], seed: int, position: int) -> None:
    drafts = [drafted(mode, gamma, seed=b, position=position) for b, gamma in enumerate(gammas)]
    p = distributions(sum(gammas) + len(gammas), seed=1)
    seeds, positions = [seed + b for b in range(len(gammas))], [position] * len(gammas)
    for draft, verdict in zip(drafts, verify(mode, p, drafts, seeds, positions), strict=True):
        assert verdict.drafted == len(draft.tokens)
        assert len(verdict.tokens) == verdict.accepted + 1
        assert verdict.tokens[: verdict.accepted] == draft.tokens[: verdict.accepted]
        assert all(0 <= token < VOCAB for token in verdict.tokens)
    assert verify(mode, p, drafts, seeds, positions) == verify(mode, p, drafts, seeds, positions)


@pytest.mark.parametrize("mode", [*DRAFTING, Mode.OFF])
def test_an_empty_draft_gets_one_plain_token(mode: Mode) -> None:
    (verdict,) = verify(mode, torch.eye(VOCAB)[[3]], [NO_DRAFT], [1], [5])
    assert verdict == Verdict((3,), accepted=0, drafted=0)
    assert verdict.origins == (Origin.PLAIN,)


@pytest.mark.parametrize("mode", DRAFTING)
def test_a_plain_token_is_the_bonus_token_of_the_same_position(mode: Mode) -> None:
    """p is one-hot on the draft for two positions, so the third token is a bonus drawn from the third row."""
    for seed in range(100):
        last = distributions(1, seed)
        p = torch.cat([torch.eye(VOCAB)[[4, 2]], last])
        draft = Draft((4, 2), (point_mass(4), point_mass(2)))
        (full,) = verify(mode, p, [draft], [seed], [10])
        (plain,) = verify(mode, last, [NO_DRAFT], [seed], [12])
        assert full.tokens == (4, 2, *plain.tokens)
        assert full.origins == (Origin.ACCEPTED, Origin.ACCEPTED, Origin.BONUS)


@pytest.mark.parametrize("mode", DRAFTING)
def test_greedy_is_the_argmax_whatever_was_drafted(mode: Mode) -> None:
    best = [5, 9, 1, 30]
    p = torch.eye(VOCAB)[best]
    for draft, accepted in [((5, 9, 1), 3), ((5, 8, 1), 1), ((4, 9, 1), 0), ((5, 9, 0), 2)]:
        probs = tuple(point_mass(token) for token in draft)
        (verdict,) = verify(mode, p, [Draft(draft, probs)], [0], [10])
        assert verdict.accepted == accepted
        assert verdict.tokens == tuple(best[: accepted + 1])


@pytest.mark.parametrize("mode", DRAFTING)
def test_the_position_is_absolute(mode: Mode) -> None:
    p = distributions(200, seed=2)
    drafts, seeds = [NO_DRAFT] * 200, [9] * 200
    here = verify(mode, p, drafts, seeds, range(200))
    assert here == [verify(mode, p[[b]], [NO_DRAFT], [9], [b])[0] for b in range(200)]
    assert here != verify(mode, p, drafts, seeds, range(1, 201))
    assert here != verify(mode, p, drafts, [8] * 200, range(200))


@pytest.mark.parametrize("mode", RATIO)
def test_a_drafter_that_proposes_p_itself_is_always_accepted(mode: Mode) -> None:
    weights = [1000, 3000, 60000]
    p = torch.tensor([weights] * 4, dtype=torch.float64)
    draft = Draft((2, 1, 0), tuple(law([0, 1, 2], weights) for _ in range(3)))
    verdicts = verify(mode, p.repeat(500, 1), [draft] * 500, list(range(500)), [7] * 500)
    assert {verdict.accepted for verdict in verdicts} == {3}


@pytest.mark.parametrize("mode", RATIO)
def test_an_unnormalised_p_is_taken_as_normalised(mode: Mode) -> None:
    drafts = [drafted(mode, 3, seed=b) for b in range(64)]
    p = distributions(256, seed=3, dtype=torch.float64)
    seeds, positions = list(range(64)), [10] * 64
    assert verify(mode, p, drafts, seeds, positions) == verify(mode, 4 * p, drafts, seeds, positions)


@pytest.mark.parametrize("mode", DRAFTING)
def test_p_and_the_drafts_are_left_as_they_are(mode: Mode) -> None:
    p, draft = distributions(4, seed=3), drafted(mode, 3, seed=1)
    before = p.clone(), [(probs.ids.clone(), probs.weights.clone()) for probs in draft.probs]
    verify(mode, p, [draft], [0], [10])
    assert torch.equal(p, before[0])
    for probs, (ids, weights) in zip(draft.probs, before[1], strict=True):
        assert torch.equal(probs.ids, ids)
        assert torch.equal(probs.weights, weights)


@pytest.mark.parametrize("mode", DRAFTING)
def test_another_device_gives_the_same_verdicts(mode: Mode, device: torch.device) -> None:
    drafts = [drafted(mode, b % 6, seed=b) for b in range(60)]
    p = distributions(sum(len(draft.tokens) + 1 for draft in drafts), seed=4, dtype=torch.float64)
    seeds, positions = list(range(60)), [10] * 60
    assert verify(mode, p.to(device), drafts, seeds, positions) == verify(mode, p, drafts, seeds, positions)


def test_each_draft_may_have_a_mode_of_its_own(device: torch.device) -> None:
    modes = [[*DRAFTING, Mode.OFF][b % 4] for b in range(40)]
    drafts = [NO_DRAFT if mode is Mode.OFF else drafted(mode, b % 5, seed=b) for b, mode in enumerate(modes)]
    sizes = [len(draft.tokens) + 1 for draft in drafts]
    p = distributions(sum(sizes), seed=4, dtype=torch.float64)
    lenience = [0.5 if mode is Mode.REJECTION else 1.0 for mode in modes]
    alone = [
        verify(mode, rows, [draft], [b], [10], [ell])[0]
        for b, (mode, rows, draft, ell) in enumerate(zip(modes, p.split(sizes), drafts, lenience, strict=True))
    ]
    for each in (p, p.to(device)):
        assert verify_each(modes, each, drafts, range(40), [10] * 40, lenience) == alone


def test_no_drafts_give_no_verdicts() -> None:
    assert verify_each([], torch.zeros(0, VOCAB), [], [], []) == []
    assert verify(Mode.REJECTION, torch.zeros(0, VOCAB), [], [], []) == []


BAD_DRAFTS = {
    "token over the vocabulary": (Draft((VOCAB,), (point_mass(VOCAB - 1),)), TokenOutOfRange),
    "negative token": (Draft((-1,), (point_mass(1),)), TokenOutOfRange),
    "no distribution": (Draft((1,), ()), FieldInvalid),
    "more distributions than tokens": (Draft((1,), (point_mass(1), point_mass(1))), FieldInvalid),
    "empty distribution": (Draft((1,), (law([], []),)), FieldInvalid),
    "zero weight": (Draft((1,), (law([1, 2], [1, 0]),)), FieldInvalid),
    "negative weight": (Draft((1,), (law([1, 2], [1, -1]),)), FieldInvalid),
    "weight over uint16": (Draft((1,), (law([1], [65536]),)), FieldInvalid),
    "id over the vocabulary": (Draft((1,), (law([1, VOCAB], [1, 1]),)), FieldInvalid),
    "negative id": (Draft((1,), (law([-1, 1], [1, 1]),)), FieldInvalid),
    "id twice": (Draft((1,), (law([1, 1], [1, 1]),)), FieldInvalid),
    "ids out of order": (Draft((1,), (law([2, 1], [1, 1]),)), FieldInvalid),
    "token outside its support": (Draft((3,), (law([1, 2], [1, 1]),)), FieldInvalid),
    "more ids than weights": (Draft((1,), (law([1, 2], [1]),)), FieldInvalid),
    "real-valued weights": (Draft((1,), (SparseProbs(torch.tensor([1]), torch.tensor([1.0])),)), FieldInvalid),
}


@pytest.mark.parametrize("mode", RATIO)
@pytest.mark.parametrize(("draft", "error"), BAD_DRAFTS.values(), ids=BAD_DRAFTS)
def test_a_malformed_draft_is_refused_by_name(mode: Mode, draft: Draft, error: type[SpecdecError]) -> None:
    good = drafted(mode, 2, seed=0)
    with pytest.raises(error):
        check_drafts(mode, [draft], VOCAB)
    with pytest.raises(error):
        verify(mode, distributions(3 + 2, seed=0), [good, draft], [0, 1], [10, 10])


def test_coupled_needs_no_distributions_but_checks_tokens() -> None:
    check_drafts(Mode.COUPLED, [Draft((1, 2))], VOCAB)
    with pytest.raises(TokenOutOfRange):
        check_drafts(Mode.COUPLED, [Draft((VOCAB,))], VOCAB)


def test_mode_off_takes_no_drafts() -> None:
    with pytest.raises(FieldInvalid):
        verify(Mode.OFF, distributions(2, seed=0), [Draft((1,), (point_mass(1),))], [0], [10])


@pytest.mark.parametrize("mode", DRAFTING)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -0.5])
def test_a_row_of_p_that_is_no_distribution_is_named(mode: Mode, bad: float) -> None:
    p = distributions(5, seed=0)
    p[3, 7] = bad
    with pytest.raises(InternalError, match=r"\[3\]"):
        verify(mode, p, [drafted(mode, 2, seed=0), drafted(mode, 1, seed=1)], [0, 1], [10, 10])


@pytest.mark.parametrize("mode", DRAFTING)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -0.5])
def test_rows_that_the_verdict_does_not_reach_are_not_judged(mode: Mode, bad: float) -> None:
    seeds = range(60)
    drafts = [drafted(mode, 1, seed=seed) for seed in seeds]
    p = distributions(2 * len(seeds), seed=0)
    valid = verify(mode, p, drafts, seeds, [10] * len(seeds))
    broken = p.clone()
    broken[1::2, 7] = bad  # the row after each whole draft
    found = verify(mode, broken, drafts, seeds, [10] * len(seeds))
    for draft, one, other in zip(drafts, valid, found, strict=True):
        if not one.accepted:
            assert other == one
        else:
            assert other._replace(overlaps=()) == Verdict(draft.tokens, accepted=1, drafted=1)
            assert other.origins == (Origin.ACCEPTED,)
    assert {verdict.accepted for verdict in valid} == {0, 1}


@pytest.mark.parametrize("mode", DRAFTING)
def test_an_invalid_row_ends_the_draft_before_it(mode: Mode) -> None:
    """Rows after the invalid one do not matter: the verdict is as if the draft had ended there."""
    p = distributions(4, seed=1)
    for seed in range(60):
        draft = drafted(mode, 3, seed=seed)
        broken = p.clone()
        broken[1] = torch.nan
        (short,) = verify(mode, p[:2], [draft.cut(1)], [seed], [10])
        (found,) = verify(mode, broken, [draft], [seed], [10])
        assert found.accepted == short.accepted
        assert found.tokens == (short.tokens if not short.accepted else draft.tokens[:1])


@pytest.mark.parametrize("mode", DRAFTING)
def test_a_row_of_zeros_is_no_distribution(mode: Mode) -> None:
    with pytest.raises(InternalError):
        verify(mode, torch.zeros(1, VOCAB), [NO_DRAFT], [0], [10])


@pytest.mark.parametrize(
    ("p", "seeds", "positions"),
    [
        (torch.ones(2, VOCAB), [0], [0]),
        (torch.ones(1, VOCAB, dtype=torch.int64), [0], [0]),
        (torch.ones(VOCAB), [0], [0]),
        (torch.ones(1, VOCAB), [0, 1], [0]),
        (torch.ones(1, VOCAB), [0], []),
    ],
)
def test_shapes_that_disagree_are_refused(p: Tensor, seeds: list[int], positions: list[int]) -> None:
    with pytest.raises(InternalError):
        verify(Mode.REJECTION, p, [NO_DRAFT], seeds, positions)


def near(draft: Draft, seed: int) -> Tensor:
    """Return target distributions near the q̂ of a draft, and one more."""
    rows = distributions(len(draft.tokens) + 1, seed)
    drafts = torch.stack([*map(dense, draft.probs), torch.zeros(VOCAB)])
    return (rows + drafts / 3) / (1 + drafts.sum(-1, keepdim=True) / 3)


def dense(probs: SparseProbs) -> Tensor:
    return torch.zeros(VOCAB).index_put((probs.ids,), (probs.weights / probs.weights.sum()).float())


@pytest.mark.parametrize("lenience", [1.0, 0.4])
def test_the_overlaps_are_those_of_the_judged_positions(lenience: float, device: torch.device) -> None:
    drafts = [drafted(Mode.REJECTION, gamma, seed=b, support=2 + b) for b, gamma in enumerate((3, 0, 5, 2, 4, 4))]
    rows = [near(draft, seed=b) for b, draft in enumerate(drafts)]
    p, of = torch.cat(rows), (list(range(6)), [10] * 6, [lenience] * 6)
    for here in (p, p.to(device)):
        verdicts = verify(Mode.REJECTION, here, drafts, *of)
        assert 0 < sum(verdict.accepted for verdict in verdicts) < sum(len(draft.tokens) for draft in drafts)
        for verdict, draft, own in zip(verdicts, drafts, rows, strict=True):
            judged = min(verdict.accepted + 1, len(draft.tokens))
            expected = [float(torch.minimum(own[i] / lenience, dense(draft.probs[i])).sum()) for i in range(judged)]
            assert verdict.overlaps == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("mode", [Mode.BLOCK, Mode.COUPLED])
def test_other_modes_have_no_overlaps(mode: Mode) -> None:
    (verdict,) = verify(mode, distributions(4, 1), [drafted(mode, 3, seed=1)], [1], [10])
    assert verdict.overlaps == ()


def test_overlaps_estimate_what_is_accepted_with_less_variance() -> None:
    counted, expected = AcceptanceEstimate(weight=0.0, decay=1.0), AcceptanceEstimate(weight=0.0, decay=1.0)
    counts, overlaps = list[float](), list[float]()
    for seed in range(1500):
        draft = drafted(Mode.REJECTION, 4, seed)
        (verdict,) = verify(Mode.REJECTION, near(draft, seed), [draft], [seed], [10])
        counted = counted.observed(4, verdict.accepted)
        expected = expected.observed(4, verdict.accepted, sum(verdict.overlaps))
        counts += [float(each < verdict.accepted) for each in range(len(verdict.overlaps))]
        overlaps += verdict.overlaps
    error = stdev(counts) / len(counts) ** 0.5
    assert expected.alpha == pytest.approx(counted.alpha, abs=4 * error)
    assert stdev(overlaps) < stdev(counts) / 2
