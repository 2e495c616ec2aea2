"""Pages made from the code are what the code says now."""

import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def configuration() -> str:
    """The configuration page as it would be made now."""
    page: str = runpy.run_path(str(DOCS / "configuration.py"))["page"]()
    return page


def test_the_configuration_page_is_fresh(configuration: str) -> None:
    assert (DOCS / "configuration.md").read_text(encoding="utf-8") == configuration, "run `make docs`"


def test_every_setting_says_what_it_means(configuration: str) -> None:
    silent = [line for line in configuration.splitlines() if line.startswith("| `") and line.endswith("|  |")]
    assert not silent
