"""The tables that are printed at the end of a run: p-values, and which check caught which planted bug."""

from collections.abc import Callable, Iterator

import pytest
import structlog

NOTES = pytest.StashKey[dict[str, list[str]]]()
Note = Callable[[str, str], None]
"""Adds a line to the table of that title."""


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> Iterator[None]:
    """Thousands of calls: only what goes wrong is logged, and of planted bugs much does."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("critical"))
    yield
    structlog.reset_defaults()


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Note:
    """Write into a table."""
    tables = request.config.stash.setdefault(NOTES, {})
    return lambda title, line: tables.setdefault(title, []).append(line)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Show what the tests measured."""
    for title, lines in config.stash.get(NOTES, {}).items():
        terminalreporter.section(title)
        for line in lines:
            terminalreporter.write_line(line)
