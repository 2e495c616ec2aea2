"""Pages agree with the code: paths exist, and so do the values that carry a request and a round."""

import re
from pathlib import Path

import pytest

from gateway.turns.state import TRANSITIONS, TurnState

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "tests" / "conformance" / "README.md"])
FOLDERS = (
    "protos",
    "specdec",
    "drafter_service",
    "verifier_service",
    "gateway",
    "helm",
    "images",
    "benchmarks",
    "models",
    "tests",
    "docs",
)
PATH = re.compile(rf"`((?:{'|'.join(FOLDERS)})/[\w./-]*)`")
ROW = re.compile(r"^\| (`[A-Z]\w+`(?:, `[A-Z]\w+`)*) \| `([\w/]+\.py)` \|", flags=re.MULTILINE)
WAY_IN, WAY_OUT = 9, 8
"""Largest number of values that carry a request from its body to a batch, and a round from its verdict to an answer."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_in_a_page_exist(page: Path) -> None:
    missing = [path for path in PATH.findall(page.read_text(encoding="utf-8")) if not (ROOT / path).exists()]
    assert not missing


def test_the_tests_that_show_a_failure_exist() -> None:
    page = (ROOT / "docs" / "failure.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:unit|integration|e2e)/[\w/]+)`", page)
    assert len(named) > 5
    assert not [name for name in named if not (ROOT / "tests" / f"{name}.py").exists()]


def test_the_values_of_the_walk_are_where_the_page_says() -> None:
    rows = ROW.findall((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
    assert len(rows) > 10
    for names, path in rows:
        text = (ROOT / path).read_text(encoding="utf-8")
        for name in re.findall(r"\w+", names):
            assert re.search(rf"^class {name}\b", text, flags=re.MULTILINE), f"{path} has no {name}"


@pytest.mark.parametrize(("heading", "most"), [("from body to batch", WAY_IN), ("from verdict to answer", WAY_OUT)])
def test_a_request_and_a_round_are_wrapped_no_more_often(heading: str, most: int) -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page[page.index(heading) :].split("\n\n")[1]
    assert 0 < len(table.splitlines()) - 2 <= most


def test_the_states_of_a_turn_are_those_of_the_page() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page[page.index("## The states of a turn") :].split("\n\n")[2]
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()[2:]]
    told = {(TurnState(now), TurnState(then)) for begin, then, *_ in rows for now in begin.split(", ")}
    assert told == {(now, then) for now, follow in TRANSITIONS.items() for then in follow}
    assert not [test for *_, test in rows if not (ROOT / "tests" / f"{test.strip('`')}.py").exists()]
