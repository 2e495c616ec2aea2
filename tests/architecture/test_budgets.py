"""Files stay small enough to be read in one sitting."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMIT = 250
CODE = sorted(
    path.relative_to(ROOT)
    for folder in ("specdec", "drafter_service", "verifier_service", "gateway", "models", "benchmarks")
    for path in (ROOT / folder).rglob("*.py")
)


@pytest.mark.parametrize("path", CODE, ids=str)
def test_a_file_keeps_within_its_budget(path: Path) -> None:
    assert len((ROOT / path).read_text().splitlines()) <= LIMIT


@pytest.mark.parametrize("path", CODE, ids=str)
def test_a_file_opens_with_its_contract(path: Path) -> None:
    text = (ROOT / path).read_text()
    assert not text.strip() or text.startswith(('"""', 'r"""'))
