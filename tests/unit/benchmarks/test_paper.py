"""docs/paper.md: the code computes its closed-form parts, and its worked examples are correct."""

import re
from pathlib import Path

import pytest
import torch

from benchmarks.paper import closed, page, published, worked
from benchmarks.paper.measured import Approximation, Speed, _judged, _served
from benchmarks.reports.statistics import Ratio
from benchmarks.theory import divergence
from specdec.planning.gamma import expected_tokens, speedup

TEXT = page.PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", page.closed_parts())
def test_the_page_says_what_the_formulas_give(name: str) -> None:
    assert page.block(TEXT, name) == page.closed_parts()[name]


@pytest.mark.parametrize("name", ["conditions", "walltime", "alpha", "lenience", "beams"])
def test_the_page_has_what_was_measured(name: str) -> None:
    assert page.block(TEXT, name)


def test_the_pictures_of_the_page_are_there() -> None:
    for name in ("figure-2", "figure-3", "figure-4-speed", "figure-4-operations", "figure-5"):
        assert f"paper/{name}.png" in TEXT
        assert (page.PICTURES / f"{name}.png").is_file()


def test_table_1_is_the_papers_to_the_last_digit() -> None:
    rows = closed.operations().splitlines()[2:]
    assert len(rows) == len(published.OPERATIONS)
    assert all(row.count("yes") == 2 for row in rows)


def test_table_4_is_the_papers_within_a_tenth() -> None:
    assert len(published.WALLTIME) == 12
    for each in published.WALLTIME:
        assert speedup(each.alpha, each.gamma, each.c) == pytest.approx(each.expected, abs=0.1)


def test_the_best_gamma_grows_with_alpha_and_falls_with_c() -> None:
    figure = next(chart for chart in closed.curves() if chart.name == "figure-3")
    cheap, dear = figure.curves["c = 0.01"], figure.curves["c = 0.1"]
    assert [y for _, y in cheap] == sorted(y for _, y in cheap)
    assert all(low <= high for (_, low), (_, high) in zip(dear, cheap, strict=True))


def test_the_ngram_source_goes_on_after_a_phrase_it_has_seen() -> None:
    assert worked.ngram_trace("the cat sat on the mat . a dog", "the cat sat") == ["on", "the", "mat", "."]


def test_a_greedy_round_commits_up_to_the_first_difference() -> None:
    assert worked.greedy_round(["a", "b", "c"], ["a", "x", "c", "d"]) == ["a", "x"]
    assert worked.greedy_round(["a", "b"], ["a", "b", "c"]) == ["a", "b", "c"]


def test_skipping_the_residual_is_off_by_what_the_page_says() -> None:
    law, distance = worked.without_adjustment()
    assert sum(law) == pytest.approx(1)
    assert distance == pytest.approx(0.15)


def test_the_greedy_processor_and_the_returned_rejection_err_as_documented() -> None:
    assert worked.greedy_by_ratio() == pytest.approx(0.6)
    assert worked.with_rejected() == pytest.approx(0.3)


@pytest.mark.parametrize("alpha", [0.5, 0.7, 0.9])
def test_the_expected_drafts_are_the_sum_over_how_many_are_kept(alpha: float) -> None:
    some = sum(kept * alpha**kept * (1 - alpha) for kept in range(4))
    (row,) = (row for row in worked.accepted_drafts().splitlines() if row.startswith(f"| {alpha:g} |"))
    assert float(row.split("|")[2]) == pytest.approx(some + 4 * alpha**4, abs=0.006)
    assert worked.printed_drafts(alpha) == pytest.approx(some + 4 * alpha**4 * (2 - alpha))


def test_the_footnote_s_sum_is_below_the_expected_length() -> None:
    assert worked.footnote_length(0.8, 10) == pytest.approx(expected_tokens(0.8, 10) - 11 * 0.8**11, abs=1e-9)


def test_the_oracle_s_figure_is_computed_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    assert closed.text_figures().splitlines()[-1].endswith("| yes |")
    monkeypatch.setattr(closed, "_oracle_gain", lambda alpha, c: 2.0)
    assert closed.text_figures().splitlines()[-1].endswith("| +0.4 |")


def test_the_served_law_keeps_at_most_what_the_dense_one_does() -> None:
    p, q = (torch.rand(4, 200, generator=torch.Generator().manual_seed(seed)).softmax(-1) for seed in (1, 2))
    served, dense = _served(p, q, 1.0), torch.minimum(p, q).sum(-1)
    assert bool((served < dense).all())
    assert _served(p[:, :64].softmax(-1), q[:, :64].softmax(-1), 1.0).tolist() == pytest.approx(
        torch.minimum(p[:, :64].softmax(-1), q[:, :64].softmax(-1)).sum(-1).tolist(), abs=1e-4
    )


def test_the_divergence_of_the_paper_is_one_less_alpha() -> None:
    """Definition 3.2, Lemma 3.3, Corollary 3.4 and Theorem 3.5."""
    p, q = (torch.rand(9, generator=torch.Generator().manual_seed(seed)).double() for seed in (3, 4))
    p, q = p / p.sum(), q / q.sum()
    assert divergence(p, q).item() == pytest.approx(1 - torch.minimum(p, q).sum().item(), abs=1e-12)
    assert divergence(p, q).item() == pytest.approx(divergence(q, p).item(), abs=1e-12)
    assert divergence(p, p).item() == 0.0
    assert divergence(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])).item() == 1.0


PLACES = re.findall(r"`([\w./-]+\.(?:py|js|cpp))(?:::(\w+))?`", page.block(TEXT, "places"))


NUMBERED = {
    "Leviathan": [
        *(f"Theorem {number}" for number in ("3.5", "3.8", "3.11")),
        *(f"Corollary {number}" for number in ("3.4", "3.6", "3.9")),
        *(f"Definition {number}" for number in ("3.1", "3.2", "3.7", "3.10")),
        *(f"Table {number}" for number in range(1, 6)),
        *(f"Figure {number}" for number in range(1, 6)),
        *("Equation (1)", "Lemma 3.3", "Algorithm 1", "Appendix A.1", "A.2", "A.3", "A.4", "A.5"),
    ],
    "Stratos": [
        *("§1, equation (1)", "§1, algorithm", "§1.1, algorithm", "§1.1.1", "§2, iterative sampling"),
        *("§2.1, algorithm", "§2.1, figure", "§3", "Appendix A, greedy chain", "Appendix A, greedy tree"),
    ],
    "n-grams": ["acceptance logic", "speed-up analysis", "predict() trace", "buffer capacity guard"],
    "notes": [
        *("§2", *(f"§3.3.{number}" for number in range(1, 7)), "§3.2", "§4.2", "§4.3", "§4.4", "§5", "§6", "§7"),
    ],
    "blog": ["the algorithm and its n"],
}
"""Equations, theorems, tables, figures and algorithms of each document; of unnumbered ones, their sections."""


@pytest.mark.parametrize("document", NUMBERED)
def test_every_numbered_item_of_the_documents_has_a_place(document: str) -> None:
    rows = [row.split(" | ") for row in page.block(TEXT, "places").splitlines()]
    items = [row[1] for row in rows if row[0] == document]
    assert not [
        item
        for item in NUMBERED[document]
        if not any(re.search(rf"{re.escape(item)}(?!\d|\.\d)", each) for each in items)
    ]


@pytest.mark.parametrize(("path", "name"), PLACES)
def test_each_place_of_the_documents_parts_exists(path: str, name: str) -> None:
    text = (page.ROOT / path).read_text(encoding="utf-8")
    assert not name or re.search(rf"(?:def|class|function) {name}\b|^{name}\b", text, re.MULTILINE)


def test_alpha_lenience_and_rejection_sampling_by_hand() -> None:
    p, q = torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([[0.2, 0.3, 0.5]])
    strict, half, third, tenth, rejection = (each.item() for each in _judged(p, q, 1.0))
    assert strict == pytest.approx(0.7)
    assert half == pytest.approx(0.2 + 0.3 + 0.4)
    assert (third, tenth) == (pytest.approx(1.0), pytest.approx(1.0))
    assert rejection == pytest.approx(0.4)
    greedy = [each.item() for each in _judged(p, q, 0.0)]
    assert greedy == [0.0, 0.0, 1.0, 1.0, 0.0]


def test_measured_tables_stand_beside_the_papers(tmp_path: Path) -> None:
    each = Approximation(0.5, (0.5, 0.6, 0.7, 0.8), 0.1, 0.45)
    found = {1.0: dict.fromkeys(("random", "unigram", "bigram", "model"), each)}
    assert "| model | 1 | 0.500 | 0.53–0.89 | 0.450 | 0.1000 |" in page.alphas(found)
    assert "0.700 / 0.76" in page.leniences(found)
    speed = Speed(4, 0.5, 0.1, 1.5, Ratio(1.4, 1.3, 1.5))
    assert "| model | 1 | 4 | 0.50 | 0.10 | 1.50 | 1.40 (1.30..1.50) |" in page.speeds({1.0: {"model": speed}})
    page.write("a\n<!-- x -->\nb", {"x": "middle"}, tmp_path / "page.md")
    assert page.block((tmp_path / "page.md").read_text(), "x") == "middle"
