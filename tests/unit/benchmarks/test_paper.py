"""docs/paper.md: its closed-form parts are what the code computes, and the worked examples are right by themselves."""

from pathlib import Path

import pytest
import torch

from benchmarks.paper import closed, page, published, worked
from benchmarks.paper.measured import Approximation, Speed, _judged
from benchmarks.reports.statistics import Ratio

TEXT = page.PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", page.closed_parts())
def test_the_page_says_what_the_formulas_give(name: str) -> None:
    assert page.block(TEXT, name) == page.closed_parts()[name]


@pytest.mark.parametrize("name", ["conditions", "walltime", "alpha", "lenience"])
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


def test_the_best_gamma_grows_with_alpha_and_falls_with_c() -> None:
    figure = next(chart for chart in closed.curves() if chart.name == "figure-3")
    cheap, dear = figure.curves["c = 0.01"], figure.curves["c = 0.1"]
    assert [y for _, y in cheap] == sorted(y for _, y in cheap)
    assert all(low <= high for (_, low), (_, high) in zip(dear, cheap, strict=True))


def test_the_ngram_source_goes_on_behind_a_phrase_it_has_seen() -> None:
    assert worked.ngram_trace("the cat sat on the mat . a dog", "the cat sat") == ["on", "the", "mat", "."]


def test_a_greedy_round_commits_up_to_the_first_difference() -> None:
    assert worked.greedy_round(["a", "b", "c"], ["a", "x", "c", "d"]) == ["a", "x"]
    assert worked.greedy_round(["a", "b"], ["a", "b", "c"]) == ["a", "b", "c"]


def test_skipping_the_residual_is_off_by_what_the_page_says() -> None:
    law, distance = worked.without_adjustment()
    assert sum(law) == pytest.approx(1)
    assert distance == pytest.approx(0.15)


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
    each = Approximation(0.5, (0.5, 0.6, 0.7, 0.8), 0.1)
    found = {1.0: dict.fromkeys(("random", "unigram", "bigram", "model"), each)}
    assert "| model | 1 | 0.500 | 0.53–0.89 | 0.1000 |" in page.alphas(found)
    assert "0.700 / 0.76" in page.leniences(found)
    speed = Speed(4, 0.5, 0.1, 1.5, Ratio(1.4, 1.3, 1.5))
    assert "| model | 1 | 4 | 0.50 | 0.10 | 1.50 | 1.40 (1.30..1.50) |" in page.speeds({1.0: {"model": speed}})
    page.write("a\n<!-- x -->\nb", {"x": "middle"}, tmp_path / "page.md")
    assert page.block((tmp_path / "page.md").read_text(), "x") == "middle"
