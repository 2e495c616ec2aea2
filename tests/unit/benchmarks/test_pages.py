"""Every command writes only its own section, and the page states for each goal whether it is reached."""

from pathlib import Path

import pytest

from benchmarks.reports.pages import LONG, Places, publish, with_section
from benchmarks.reports.results import Chart, Figure, Goal, Report, Table, figure, lines, same_tokens
from benchmarks.reports.statistics import Ratio
from benchmarks.reports.summary import GPU_SECTIONS, ORDER, SHOWN, performance

GOAL = Goal(1.0, aim=1.3)


def _report(section: str, value: float) -> Report:
    chart = Chart("speed", "sessions", "tokens/s", {"on": [(1.0, 2.0)], "on, predicted": [(1.0, 2.5)]})
    table = Table(("peer", "ms"), [("hf", "3.0")])
    return Report(
        section, f"About {section}.", [figure("ours / theirs", Ratio(value, 0.5, 2.0), GOAL)], [table], [chart]
    )


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places.below(tmp_path)


def test_a_command_replaces_its_own_section_alone() -> None:
    page = "# Results\n\nAll.\n\n## one\n\nold\n\n## two\n\nby hand\n"
    again = with_section(page, "one", "new\n\n")
    assert again == "# Results\n\nAll.\n\n## one\n\nnew\n\n## two\n\nby hand\n"
    assert with_section(again, "one", "new") == again


def test_a_new_section_is_appended() -> None:
    assert with_section("# Results\n\n## one\n\n### part\n", "two", "new").endswith("### part\n\n## two\n\nnew\n")


def test_every_run_stays_with_its_date(places: Places) -> None:
    for value in (0.9, 1.4, 1.5):
        publish(_report("engine", value), "python -m benchmarks engine", places, load="0.1")
    publish(Report("wire", "Bytes.", [Figure("bytes", "7")]), "python -m benchmarks.wire", places, load="0.2")
    *_, newest = found = lines("engine", places.lines)
    page = places.results.read_text()
    assert f"Measured {newest['date']}, commit {newest['commit']}, {newest['cores']} cores of" in page
    assert (len(found), page.count("\nMeasured ")) == (3, 2)
    assert "| bytes | 7 |\n" in page, "no column of goals where none is set"


def test_the_page_names_one_missed_goal_of_a_section_and_counts_others(places: Places) -> None:
    publish(_report("engine", 1.4), "", places, load="0.1")
    publish(_report("stack", 0.9), "", places, load="0.1")
    missed = [Figure(name, "0.50", "≥ 1", "no") for name in ("first", "second", "third")]
    publish(Report("prompt", "", missed), "", places, load="0.1")
    page = places.performance.read_text()
    assert "| ours / theirs | ≥ 1, aim 1.3 | 0.90 (0.50..2.00) | [stack](RESULTS.md#stack) |" in page
    assert "[engine](RESULTS.md#engine)" not in page
    assert "| first, and 2 more | ≥ 1 | 0.50 | [prompt](RESULTS.md#prompt) |" in page
    assert "mean nothing" not in page
    assert "| ours / theirs | 1.40 (0.50..2.00) | ≥ 1, aim 1.3 | yes, the aim too |" in places.results.read_text()
    assert "![sessions](performance/speed.png)" in places.results.read_text()
    assert (places.pictures / "speed.png").stat().st_size


def test_the_page_begins_with_the_figures_that_readers_decide_by(places: Places) -> None:
    load, peer, section, name = SHOWN[0]
    publish(Report(section, "", [Figure(name, "2.5"), Figure("else", "7")]), "", places, load="0.1")
    page = places.performance.read_text()
    assert f"| {load} | {peer} | 2.5 |" in page
    assert "| 7 |" not in page


def test_the_page_says_since_when_no_gpu_was_measured() -> None:
    run = {"figures": [], "date": "2026-11-20"}
    newer = run | {"date": "2026-11-21"}
    assert "measured" not in performance(dict.fromkeys(ORDER, run), "").partition("## ")[0]
    old = performance(dict.fromkeys(ORDER, newer) | dict.fromkeys(GPU_SECTIONS, run), "")
    assert "GPU figures are not measured since 2026-11-20: " in old
    some = performance({name: newer for name in ORDER if name not in ("chat", "gpu")}, "")
    assert "Not measured yet: `chat`, `gpu`.\n" in some
    assert "since" not in some


def test_a_long_table_is_a_file_and_a_short_one_is_not(places: Places) -> None:
    short, long = (Table(("peer", "ms"), [(f"p{row}", "1")] * count) for row, count in enumerate((LONG, LONG + 1)))
    publish(Report("wire", "Bytes.", [Figure("bytes", "7")], [short, long]), "", places, load="0.1")
    page = places.results.read_text()
    assert ("| p0 | 1 |" in page, "| p1 | 1 |" in page) == (True, False)
    assert f"[{LONG + 1} rows](results/wire-2.csv): peer · ms." in page
    assert (places.lines / "wire-2.csv").read_text() == "peer,ms\n" + "p1,1\n" * (LONG + 1)


def test_a_quick_run_cannot_be_taken_for_a_result(places: Places) -> None:
    publish(_report("engine", 1.4), "", places, load="0.1", quick=True)
    assert "mean nothing" in places.performance.read_text()
    assert "mean nothing" in places.results.read_text()


@pytest.mark.parametrize(("value", "verdict"), [(0.99, "no"), (1.0, "yes, not the aim"), (1.3, "yes, the aim too")])
def test_a_goal_with_an_aim_has_three_verdicts(value: float, verdict: str) -> None:
    assert GOAL.verdict(value) == verdict


def test_a_limit_from_above_is_reached_from_below() -> None:
    limit = Goal(1.5, at_most=True)
    assert (str(limit), limit.verdict(1.4), limit.verdict(1.6)) == ("≤ 1.5", "yes", "no")


def test_a_comparison_with_other_texts_is_not_reached() -> None:
    assert same_tokens(3, 4) == Figure("greedy tokens identical", "3 of 4", "all", "no")
