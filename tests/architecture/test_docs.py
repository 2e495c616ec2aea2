"""Generated pages match the code."""

import runpy
from pathlib import Path

import pytest

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


def test_the_readme_s_chart_is_that_of_the_last_run_of_the_benchmark() -> None:
    chart: str = runpy.run_path(str(DOCS / "peers_chart.py"))["chart"]()
    assert (DOCS / "readme" / "peers.svg").read_text(encoding="utf-8") == chart, "run `make docs`"


def test_the_readme_is_short_enough_to_be_read() -> None:
    assert len((DOCS.parent / "README.md").read_text(encoding="utf-8").splitlines()) <= 130
