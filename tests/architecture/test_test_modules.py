"""Test modules are independent. Code shared by several is in a helper module, named after its contents."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
NAME = 70
"""Largest number of characters of a test's name."""


def imports(source: str) -> Iterator[str]:
    """Yield the dotted names that a module imports.

    `from a import b` gives `a` and `a.b`, since `b` may be a module.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def is_run_by_pytest(name: str) -> bool:
    """Whether a dotted name is that of a test module, a test or a conftest."""
    last = name.rpartition(".")[2]
    return last == "conftest" or last.startswith("test_")


def test_nobody_imports_what_pytest_runs() -> None:
    found = {
        str(path.relative_to(TESTS)): names
        for path in TESTS.rglob("*.py")
        if (names := sorted(filter(is_run_by_pytest, imports(path.read_text()))))
    }
    assert not found, "what they import from there belongs in a helper module"


@pytest.mark.parametrize(
    "line",
    [
        "from tests.integration.verifier.conftest import output",
        "from tests.integration.verifier import conftest",
        "from .conftest import output",
        "from .test_budgets import LIMIT",
        "import tests.architecture.test_budgets",
        "from tests.architecture import test_budgets as budgets",
        "from tests.architecture.test_budgets import LIMIT",
    ],
)
def test_such_an_import_is_seen(line: str) -> None:
    assert any(map(is_run_by_pytest, imports(line)))


def names(source: str) -> list[str]:
    """Return the names of the tests of a module."""
    return re.findall(r"^ *(?:async )?def (test_\w+)", source, flags=re.MULTILINE)


def test_the_name_of_a_test_is_short() -> None:
    found = {path: names(path.read_text(encoding="utf-8")) for path in TESTS.rglob("test_*.py")}
    assert [f"{path.name}: {name}" for path, all_ in found.items() for name in all_ if len(name) > NAME] == []
