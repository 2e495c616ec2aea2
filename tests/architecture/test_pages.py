"""Pages agree with the code: paths exist, and so do the values that carry a request and a round."""

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from gateway.turns.turn_stream import TRANSITIONS, TurnState

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
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
TEMPLATES = {"benchmarks/exactness/exactness.md", "benchmarks/paper/paper.md"}
"""Texts from which a page of docs/ is made."""
LINK = re.compile(r"\]\(([^)\s]+)\)")
WORDS, RECORD = 75_000, 40
"""Largest number of words of all pages, and of lines of a decision record."""
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


def markdown() -> dict[str, str]:
    """Every Markdown file of the repository, by its path."""
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {path: (ROOT / path).read_text(encoding="utf-8") for path in listed.split()}


def pages() -> dict[str, str]:
    """Every page that is not a template, by its path, without its blocks of code."""
    return {path: re.sub(r"(?s)```.*?```", "", text) for path, text in markdown().items() if path not in TEMPLATES}


def links(pages: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield each link between pages: its page, the path that it leads to, and its anchor."""
    for page, text in pages.items():
        for link in LINK.findall(text):
            path, _, anchor = link.partition("#")
            if not link.startswith(("http:", "https:", "mailto:")):
                yield page, os.path.normpath(Path(page).parent / path) if path else page, anchor


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    heads = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", head).lower() for head in heads)
    return {re.sub(r"[^\w\- ]", "", head).strip().replace(" ", "-") for head in plain}


def test_every_link_leads_somewhere() -> None:
    texts = pages()
    assert [
        f"{page}: {path}#{anchor}"
        for page, path, anchor in links(texts)
        if not (ROOT / path).exists() or (anchor and path in texts and anchor not in anchors(texts[path]))
    ] == []


def test_every_page_is_linked_from_another() -> None:
    texts = pages()
    linked = {path for page, path, _ in links(texts) if page != path}
    assert sorted(set(texts) - linked - {"README.md"}) == []


def test_every_decision_is_in_the_index_under_its_title() -> None:
    index = (ROOT / "docs" / "decisions" / "README.md").read_text(encoding="utf-8")
    titles = {path.name: path.read_text(encoding="utf-8").splitlines()[0].partition(". ")[2] for path in DECISIONS}
    assert [name for name, title in titles.items() if f"[{title}]({name})" not in index] == []


def test_the_pages_are_short_enough_to_be_read() -> None:
    words = sum(len(text.split()) for text in markdown().values())
    records = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in DECISIONS}
    assert words <= WORDS
    assert [name for name, lines in records.items() if lines > RECORD] == []
