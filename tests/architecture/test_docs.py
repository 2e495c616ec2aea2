"""Generated pages match the code."""

import re
import runpy
import shutil
from pathlib import Path

import pytest

from benchmarks.reports.pages import REPOSITORY, Places, write

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def configuration() -> str:
    """Return a newly generated configuration page."""
    page: str = runpy.run_path(str(DOCS / "configuration.py"))["page"]()
    return page


def test_the_configuration_page_is_fresh(configuration: str) -> None:
    assert (DOCS / "configuration.md").read_text(encoding="utf-8") == configuration, "run `make docs`"


def test_every_setting_says_what_it_means(configuration: str) -> None:
    silent = [line for line in configuration.splitlines() if line.startswith("| `") and line.endswith("|  |")]
    assert not silent


def test_the_status_codes_of_the_grpc_page_are_those_of_the_code() -> None:
    codes = runpy.run_path(str(DOCS / "status_codes.py"))
    (found,) = codes["TABLE"].findall((DOCS / "grpc.md").read_text(encoding="utf-8"))
    assert found == codes["table"](), "run `make docs`"


def test_the_readme_s_chart_is_that_of_the_last_run_of_the_benchmark() -> None:
    chart: str = runpy.run_path(str(DOCS / "peers_chart.py"))["chart"]()
    assert (DOCS / "readme" / "peers.svg").read_text(encoding="utf-8") == chart, "run `make docs`"


def test_the_pages_of_results_are_fresh(tmp_path: Path) -> None:
    folder, docs = tmp_path / "benchmarks", tmp_path / "docs"
    docs.mkdir()
    places = Places(folder / "results", folder / "RESULTS.md", docs / "performance.md", docs / "performance")
    shutil.copytree(REPOSITORY.lines, places.lines)
    shutil.copy(REPOSITORY.results, places.results)
    tables = {file.name: file.read_text() for file in places.lines.glob("*.csv")}
    write([file.stem for file in places.lines.glob("*.jsonl")], places)
    assert places.results.read_text() == REPOSITORY.results.read_text(), "run `make docs`"
    assert places.performance.read_text() == REPOSITORY.performance.read_text(), "run `make docs`"
    assert {file.name: file.read_text() for file in places.lines.glob("*.csv")} == tables, "run `make docs`"


def test_the_readme_is_short_enough_to_be_read() -> None:
    assert len((DOCS.parent / "README.md").read_text(encoding="utf-8").splitlines()) <= 130


LINKED = re.findall(
    r"\[(\d+\.\d\d[^\]]*)\]\(\.\./benchmarks/RESULTS\.md#(\w+)\)", (DOCS / "drafting.md").read_text(encoding="utf-8")
)
"""Figures of the page about drafting, and the section of the results that each links."""


@pytest.mark.parametrize(("figures", "section"), LINKED)
def test_the_figures_of_drafting_are_in_the_results_that_they_link(figures: str, section: str) -> None:
    text = REPOSITORY.results.read_text(encoding="utf-8").split(f"\n## {section}\n")[1].split("\n## ")[0]
    tables = [file.read_text(encoding="utf-8") for file in REPOSITORY.lines.glob(f"{section}-*.csv")]
    missing = [each for each in re.findall(r"\d+\.\d\d", figures) if each not in "\n".join([text, *tables])]
    assert not missing
