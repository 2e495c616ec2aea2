"""Files are small enough to read in one sitting, root folders have few modules, and every name means one thing."""

import ast
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMIT = 400
CODE = sorted(
    path.relative_to(ROOT)
    for folder in ("specdec", "drafter_service", "verifier_service", "gateway", "models", "benchmarks")
    for path in (ROOT / folder).rglob("*.py")
    if "_pb2" not in path.name
)


@pytest.mark.parametrize("path", CODE, ids=str)
def test_a_file_keeps_within_its_budget(path: Path) -> None:
    assert len((ROOT / path).read_text().splitlines()) <= LIMIT


@pytest.mark.parametrize("path", CODE, ids=str)
def test_a_file_opens_with_its_contract(path: Path) -> None:
    text = (ROOT / path).read_text()
    assert not text.strip() or text.startswith(('"""', 'r"""'))


@pytest.mark.parametrize(
    ("package", "most"), [("specdec", 12), ("drafter_service", 12), ("verifier_service", 12), ("gateway", 14)]
)
def test_the_root_of_a_package_has_few_modules(package: str, most: int) -> None:
    assert len(list((ROOT / package).glob("*.py"))) <= most


def test_no_public_class_name_of_the_product_stands_twice() -> None:
    product = [path for path in CODE if path.parts[0] not in ("models", "benchmarks")]
    trees = [ast.parse((ROOT / path).read_text()) for path in product]
    names = [each.name for tree in trees for each in tree.body if isinstance(each, ast.ClassDef)]
    assert [name for name, count in Counter(names).items() if count > 1 and not name.startswith("_")] == []
