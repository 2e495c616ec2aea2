"""Tables printed at the end of a run: p-values, and which check caught which planted bug."""

import itertools
from collections.abc import Iterator

import pytest
import structlog
from torch import Tensor

from specdec.rules import acceptance
from specdec.rules.padding import FlatDrafts
from specdec.rules.speculation import Mode
from tests.conformance.bugs.bug import everywhere
from tests.conformance.notes import Note


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> Iterator[None]:
    """Log critical messages only. The checks make thousands of calls, and planted bugs cause many errors."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("critical"))
    yield
    structlog.configure(**before)


@pytest.fixture(autouse=True)
def _rules_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judge with the Python rules, in which bugs are planted.

    The host's operator is compared with them when it is loaded, and `test_sampled_chain.py` tests its law.
    """

    def judged(mode: Mode, p: Tensor, mass: Tensor, flat: FlatDrafts) -> tuple[Tensor, Tensor]:
        return acceptance.judge_by_torch(p, mass, *flat, mode is Mode.BLOCK)

    everywhere(monkeypatch, acceptance.judge_on_host, judged)


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Note:
    """Return a function that adds a line to a table.

    The line is part of the test's report, which may cross processes.
    """
    return lambda title, line: request.node.user_properties.append((title, line))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the numbers that the tests measured."""
    tables: dict[str, list[str]] = {}
    for report in itertools.chain.from_iterable(terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport) and report.when == "call":
            for title, line in report.user_properties:
                tables.setdefault(title, []).append(str(line))
    for title, lines in tables.items():
        terminalreporter.section(title)
        for line in lines:
            terminalreporter.write_line(line)
