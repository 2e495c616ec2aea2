"""The host's operators give the distributions, draws, numbers and sums of NumPy and PyTorch, or are not used."""

import logging
import math
import shutil
from itertools import accumulate, cycle
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specdec.engine.cpu import draw as host_draw
from specdec.engine.cpu.cpp_library import SOURCES, LibraryMissing
from specdec.engine.cpu.draw import HostDraws, draw_by_operator, load_draws
from specdec.rules.acceptance import judge_by_torch
from specdec.rules.checks import masses_on_host
from specdec.rules.coupling import LIKELY, Draw, draw_on_host
from specdec.rules.draft import MAX_WEIGHT, Draft, SparseProbs
from specdec.rules.multidraft import Siblings
from specdec.rules.padding import DraftBatch, FlatDrafts, flatten_drafts
from specdec.rules.rng import Lane, coordinates, uniform_on_host
from specdec.rules.speculation import Mode
from specdec.sampling.filters import distributions_on_host
from specdec.trees.flat import flatten_trees
from specdec.trees.joining import merged, side_by_side
from specdec.trees.tree import ROOT, Tree
from specdec.trees.verification import judge_trees_by_torch, tree_noise
from tests.unit.specdec.rules.random_drafts import drafted
from tests.unit.specdec.rules.random_trees import distributions as law_of_rows
from tests.unit.specdec.rules.random_trees import fill, trees

ROWS = 200
ALL = torch.arange(ROWS)


@pytest.fixture(scope="module")
def draws() -> HostDraws:
    try:
        return load_draws()
    except LibraryMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture
def draw(draws: HostDraws) -> Draw:
    return draws.draw


def words(rows: int) -> Tensor:
    seeds, positions = range(2**64 - rows, 2**64), range(2**32 - rows, 2**32)
    return coordinates(seeds, positions)


def distributions(vocab: int, sharpness: float) -> Tensor:
    return (torch.randn(ROWS, vocab, generator=torch.Generator().manual_seed(vocab)) * sharpness).softmax(-1)


@pytest.mark.parametrize("likely", [LIKELY, 0.02, 2.0])
@pytest.mark.parametrize("sharpness", [0.0, 1.0, 4.0, 100.0])
@pytest.mark.parametrize("vocab", [1, 2, 63, 64, 65, 2048, 20_000])
def test_draws_are_those_of_numpy(draw: Draw, vocab: int, sharpness: float, likely: float) -> None:
    p = distributions(vocab, sharpness)
    assert torch.equal(draw(p, ALL, words(ROWS), likely), draw_on_host(p, ALL, words(ROWS), likely))


def test_numbers_that_do_not_lie_side_by_side_are_read_as_they_are(draw: Draw) -> None:
    p = distributions(50, 2.0)
    drawn = draw(p, ALL, words(ROWS), LIKELY)
    assert torch.equal(draw(p.T.contiguous().T, ALL, words(ROWS), LIKELY), drawn)
    assert torch.equal(draw(p[::2], ALL[: ROWS // 2], words(ROWS)[:, ::2], LIKELY), drawn[::2])
    assert torch.equal(draw(p, ALL[::2], words(ROWS)[:, ::2], LIKELY), drawn[::2])


def test_an_impossible_token_is_never_drawn(draw: Draw) -> None:
    p = distributions(40, 1.0)
    p[:, 1::2] = 0.0
    p /= p.sum(-1, keepdim=True)
    for likely in (LIKELY, 2.0):
        assert bool((p.gather(1, draw(p, ALL, words(ROWS), likely)[:, None]) > 0).all())


def test_a_row_that_is_no_distribution_disturbs_no_other(draw: Draw) -> None:
    p = distributions(40, 1.0)
    broken = p.clone()
    broken[3], broken[7] = torch.nan, 0.0
    others = [row for row in range(ROWS) if row not in (3, 7)]
    assert torch.equal(draw(broken, ALL, words(ROWS), LIKELY)[others], draw(p, ALL, words(ROWS), LIKELY)[others])


def test_numbers_are_those_of_numpy(draws: HostDraws) -> None:
    places = coordinates(range(2**64 - ROWS, 2**64), range(2**32 - ROWS, 2**32), range(ROWS))
    indices = torch.arange(2**32 - ROWS, 2**32)
    lanes = indices % len(Lane)
    assert torch.equal(draws.uniform(places, indices, lanes), uniform_on_host(places, indices, lanes))
    part = draws.uniform(places[:, ::3], indices[::3], lanes[::3])
    assert torch.equal(part, uniform_on_host(places, indices, lanes)[::3])


def test_no_rows_need_no_numbers(draws: HostDraws) -> None:
    none = torch.empty(0, dtype=torch.int64)
    assert draws.uniform(words(0), none, none).shape == (0,)


@pytest.mark.parametrize("sharpness", [0.0, 3.0, 100.0])
@pytest.mark.parametrize("vocab", [1, 15, 63, 64, 65, 2048, 20_011])
@pytest.mark.parametrize("k", [1, 7, 64])
def test_likely_ids_are_those_of_a_stable_sort(draws: HostDraws, vocab: int, sharpness: float, k: int) -> None:
    q, k = distributions(vocab, sharpness), min(k, vocab)
    q[::3, ::2] = 0.0
    mass, ids = draws.likely(q, k)
    best = q.sort(dim=-1, descending=True, stable=True)
    for row in range(ROWS):
        expected = sorted(best.indices[row, :k][best.values[row, :k] > 0].tolist())
        assert ids[row, : len(expected)].tolist() == expected
        assert mass[row, : len(expected)].tolist() == q[row, expected].tolist()
        assert not mass[row, len(expected) :].any()
    assert torch.equal(draws.likely(q.T.contiguous().T, k)[1], ids)


@pytest.mark.parametrize("place", [0, 70, 299])
def test_a_row_with_nan_has_no_likely_ids_and_disturbs_no_other(draws: HostDraws, place: int) -> None:
    q = distributions(300, 2.0)
    expected, q[5, place] = draws.likely(q, 9)[0], math.nan
    mass, _ = draws.likely(q, 9)
    assert bool(mass[5].isnan().all())
    others = [row for row in range(ROWS) if row != 5]
    assert torch.equal(mass[others], expected[others])


@pytest.mark.parametrize("vocab", [1, 15, 127, 128, 129, 2048, 20_011])
def test_masses_are_those_of_pytorch(draws: HostDraws, vocab: int) -> None:
    p = distributions(vocab, 3.0)
    torch.testing.assert_close(draws.masses(p), masses_on_host(p), rtol=1e-12, atol=0.0)
    torch.testing.assert_close(draws.masses(p[::2]), masses_on_host(p)[::2], rtol=1e-12, atol=0.0)


def test_masses_tell_what_is_no_distribution(draws: HostDraws) -> None:
    p = distributions(300, 1.0)[:6].clone()
    p[1, 7], p[2, 200], p[3, 299], p[4, 255] = torch.nan, -0.5, -0.5, torch.inf
    torch.testing.assert_close(draws.masses(p), masses_on_host(p), rtol=1e-12, atol=0.0, equal_nan=True)


@pytest.mark.parametrize("vocab", [1, 2, 15, 16, 17, 1023, 1025, 2048, 20_011])
@pytest.mark.parametrize("sharpness", [0.0, 1.0, 4.0])
@pytest.mark.parametrize(
    "limits",
    [
        (1.0, 0, 1.0, 0.0),
        (0.3, 0, 1.0, 0.0),
        (1e-3, 0, 0.9, 0.0),
        (1.0, 1, 1.0, 0.0),
        (2.0, 7, 0.5, 0.0),
        (1.0, 0, 1.0, 0.1),
    ],
    ids=str,
)
def test_distributions_are_those_of_pytorch(
    draws: HostDraws, vocab: int, sharpness: float, limits: tuple[float, ...]
) -> None:
    scores = torch.randn(ROWS, vocab, generator=torch.Generator().manual_seed(vocab)) * sharpness
    wanted = torch.tensor([limits] * ROWS, dtype=torch.float64)
    expected = distributions_on_host(scores.double(), wanted).float()
    torch.testing.assert_close(draws.distributions(scores, wanted), expected, rtol=1e-4, atol=1e-30)
    part = draws.distributions(scores[::2, : vocab // 2 + 1], wanted[::2])
    assert torch.equal(part, draws.distributions(scores[:, : vocab // 2 + 1].contiguous(), wanted)[::2])


def test_invalid_or_masked_scores_give_no_law_and_disturb_no_other_row(draws: HostDraws) -> None:
    scores, limits = torch.randn(6, 50), torch.tensor([[0.7, 9, 0.9, 0.01]] * 6, dtype=torch.float64)
    expected = draws.distributions(scores, limits)
    scores[1, 49], scores[2, 0], scores[3], scores[4, 3] = torch.nan, torch.inf, -torch.inf, -torch.inf
    found = draws.distributions(scores, limits)
    assert bool(found[1:4].isnan().all())
    assert torch.equal(found[[0, 5]], expected[[0, 5]])
    assert found[4, 3] == 0.0
    assert found[4].sum() == pytest.approx(1.0)


@pytest.mark.usefixtures("draws")
def test_a_process_that_wants_the_operators_draws_by_them() -> None:
    draw_by_operator()
    for name in ("distributions", "draw", "judge", "judge_trees", "likely", "masses", "uniform"):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"specdec::{name}", "CPU")
    p, words_of = distributions(300, 2.0), words(ROWS)
    assert torch.equal(torch.ops.specdec.draw(p, ALL, words_of, LIKELY), draw_on_host(p, ALL, words_of, LIKELY))


def flat_drafts(mode: Mode, p: Tensor, ids: int) -> FlatDrafts:
    """Return drafts of up to four tokens for all rows of p, with q̂ over some of the first ids; some with lenience."""
    lengths, drafts, left = cycle([0, 1, 2, 4]), list[Draft](), len(p)
    while left > 5:
        drafts.append(drafted(mode, next(lengths), len(drafts), ids=ids))
        left -= len(drafts[-1].tokens) + 1
    first = list(accumulate((len(draft.tokens) + 1 for draft in drafts[:-1]), initial=0))
    lenience = [0.4 if mode is Mode.REJECTION and b % 3 == 0 else 1.0 for b in range(len(drafts))]
    batch = DraftBatch(mode, drafts, range(len(drafts)), [10] * len(drafts), lenience, first)
    return flatten_drafts(batch, *map(uniforms, (sum(len(each.tokens) for each in drafts), len(p) - left)))


def uniforms(count: int) -> Tensor:
    u = torch.rand(count, generator=torch.Generator().manual_seed(count), dtype=torch.float64)
    u[0], u[-1] = 0.0, 1.0 - 2.0**-53
    return u


@pytest.mark.parametrize("mode", [Mode.REJECTION, Mode.BLOCK])
@pytest.mark.parametrize("vocab", [2, 50, 127, 128, 129, 2048, 20_011])
def test_verdicts_are_those_of_pytorch(draws: HostDraws, vocab: int, mode: Mode) -> None:
    p, ids = distributions(vocab, 2.0), min(vocab, 50)
    p[:, :ids] *= 1.0 + vocab / ids  # so that some drafts are kept
    p[5:9, ids // 2 :] = 0.0
    p /= p.sum(-1, keepdim=True)
    flat, mass = flat_drafts(mode, p, ids), masses_on_host(p)
    for found, expected in zip(
        draws.judge(p, mass, *flat, mode is Mode.BLOCK), judged(p, mass, flat, mode), strict=True
    ):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("replacement", [False, True])
@given(shapes=st.lists(st.tuples(trees(6), trees(3)), min_size=1, max_size=4), seed=st.integers(0, 2**32))
@settings(deadline=None, max_examples=200)
def test_verdicts_on_trees_are_those_of_pytorch(
    draws: HostDraws, replacement: bool, shapes: list[tuple[Tree, Tree]], seed: int
) -> None:
    """Trees of two drafters, whose equal drafts are one node."""
    siblings = Siblings.of(Mode.REJECTION, replacement=replacement)
    drafts = [merged(side_by_side([fill(siblings, tree, seed + b) for b, tree in enumerate(each)])) for each in shapes]
    p = law_of_rows(sum(len(draft.tree) + 1 for draft in drafts), seed, torch.float32)
    flat = flatten_trees(drafts, *tree_noise(drafts, [seed] * len(drafts), [10] * len(drafts)))
    found = draws.judge_trees(p, masses_on_host(p), *flat, replacement)
    expected = judge_trees_by_torch(p, masses_on_host(p), *flat, replacement)
    assert [each.tolist() for each in found] == [each.tolist() for each in expected]


@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -0.5, 0.0])
def test_trees_before_a_row_without_a_law_are_judged_alike(draws: HostDraws, bad: float, replacement: bool) -> None:
    siblings, tree = Siblings.of(Mode.REJECTION, replacement=replacement), Tree((ROOT, ROOT, 0, 0, 2))
    drafts = [fill(siblings, tree, b) for b in range(40)]
    p = law_of_rows(40 * 6, 1, torch.float32)
    p[1::6] = bad
    mass, flat = masses_on_host(p), flatten_trees(drafts, *tree_noise(drafts, range(40), [10] * 40))
    (ends, last), (expected, tokens) = (
        judge(p, mass, *flat, replacement) for judge in (draws.judge_trees, judge_trees_by_torch)
    )
    assert torch.equal(ends, expected)
    sound = mass[flat.first + 1 + ends].isfinite() & (mass[flat.first + 1 + ends] > 0)
    assert not bool(sound.all())
    assert torch.equal(last[sound], tokens[sound])


@pytest.mark.parametrize("mode", [Mode.REJECTION, Mode.BLOCK])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -0.5])
def test_verdicts_before_a_row_without_a_law_are_those_of_pytorch(draws: HostDraws, bad: float, mode: Mode) -> None:
    p = distributions(300, 1.0)
    p[::3, 7] = bad
    mass, flat = masses_on_host(p), flat_drafts(mode, p, 50)
    (kept, last), (expected, tokens) = draws.judge(p, mass, *flat, mode is Mode.BLOCK), judged(p, mass, flat, mode)
    assert torch.equal(kept, expected)
    sound = mass[flat.first + kept].isfinite() & (mass[flat.first + kept] > 0)
    assert torch.equal(last[sound], tokens[sound])


@pytest.mark.parametrize("mode", [Mode.REJECTION, Mode.BLOCK])
def test_where_q_is_p_nothing_is_left_and_nothing_needs_to_be(draws: HostDraws, mode: Mode) -> None:
    p = torch.zeros(8, 400)
    p[:, 130], p[:, 390] = 0.5, 0.5
    q = SparseProbs(torch.tensor([130, 390]), torch.tensor([MAX_WEIGHT, MAX_WEIGHT]))
    drafts = [Draft((130, 390, 130), (q, q, q))] * 2
    batch = DraftBatch(mode, drafts, [1, 2], [5, 5], None, [0, 4])
    flat = flatten_drafts(
        batch, torch.full((6,), 1.0 - 2.0**-53, dtype=torch.float64), torch.linspace(0.0, 0.99, 8).double()
    )
    (kept, last), (expected, tokens) = (
        judge(p, masses_on_host(p), *flat, mode is Mode.BLOCK) for judge in (draws.judge, judge_by_torch)
    )
    assert kept.tolist() == expected.tolist() == [3, 3]
    assert last.tolist() == tokens.tolist() == [130, 390]


def judged(p: Tensor, mass: Tensor, flat: FlatDrafts, mode: Mode) -> tuple[Tensor, Tensor]:
    return judge_by_torch(p, mass, *flat, mode is Mode.BLOCK)


def test_no_rows_give_no_tokens(draw: Draw) -> None:
    assert draw(torch.empty(3, 5), ALL[:0], words(0), LIKELY).shape == (0,)


@pytest.mark.parametrize(
    ("file", "right", "wrong", "says"),
    [
        ("draw", "0xBB67AE85", "0xBB67AE84", "other tokens"),
        ("draw", "uint32_t(indices[row])", "uint32_t(row + 1)", "other random numbers"),
        ("draw", "tops[k - 1]", "tops[0]", "other likely ids"),
        ("draw", "a.mass > b.mass : ", "a.mass < b.mass : ", "other likely ids"),
        ("judge", "vocab - begin), least)", "vocab - begin) - 1, least)", "adds up otherwise"),
        ("judge", "* draft.lenience <", "<", "judges otherwise"),
        ("judge", "if (draft.u[count - 1] < h) kept", "if (!(draft.u[count - 1] < h)) break; kept", "judges otherwise"),
        ("judge", "std::min(pi * draft.rows[count]", "std::min(draft.rows[count]", "judges otherwise"),
        ("judge", "- taken.at(place), 0.0)", ", 0.0)", "judges otherwise"),
        ("judge", "+= law.left[place] -", "+= 0 *", "judges otherwise"),
        ("judge", "{row, found.scale, taken.ids", "{row, 1.0, taken.ids", "judges otherwise"),
        ("judge", "mass = total_left() + others_;\n      if", "if", "judges trees otherwise"),
        ("judge", "all -= q[own];", ";", "judges trees otherwise"),
        ("judge", "numbers += node[turn++].count", "++turn", "judges trees otherwise"),
        ("judge", "last[2 * level + node.empty()]", "last[2 * level]", "judges trees otherwise"),
        ("distributions", "limits.top_p * kept.mass", "limits.top_p", "other distributions"),
        ("distributions", "limits.top_k > 0.0 &&", "false &&", "other distributions"),
        ("distributions", "limits.min_p > kept.floor", "false", "other distributions"),
        ("distributions", "(some - top) * rate", "some - top", "other distributions"),
    ],
)
@pytest.mark.usefixtures("draws")
def test_a_library_with_other_results_is_refused(file: str, right: str, wrong: str, says: str, tmp_path: Path) -> None:
    for each in (*SOURCES.glob("host_*.cpp"), SOURCES / "lanes.h"):
        shutil.copy(each, tmp_path)
    source = (SOURCES / f"host_{file}.cpp").read_text(encoding="utf-8")
    assert right in source
    (tmp_path / f"host_{file}.cpp").write_text(source.replace(right, wrong), encoding="utf-8")
    with pytest.raises(LibraryMissing, match=says):
        load_draws(tmp_path)


def test_without_a_compiler_pytorch_judges_and_one_line_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing() -> HostDraws:
        raise LibraryMissing("there is no C++ compiler")

    monkeypatch.setattr(host_draw, "load_draws", missing)
    with caplog.at_level(logging.INFO):
        draw_by_operator.__wrapped__()
    assert [record.message.partition(": ")[2] for record in caplog.records] == ["there is no C++ compiler"]
