"""The contributor's recipe for a sampling parameter names exactly the files that such a parameter needs."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from specdec.sampling.params import SamplingParams

ROOT = Path(__file__).parents[2]
EXAMPLE = "min_p"
MOST = 9
"""Largest number of product files that name a sampling parameter."""
SPREAD = {"bad_words", "temperature", "seed", "logit_bias", "min_tokens", "end_token_ids", "top_p", "grammar"}
"""Parameters also named by other code: greedy decoding, randomness, ends, command options, compilers, tokenizers."""


def files_with(word: str) -> set[str]:
    """Return the product files, except generated ones, that contain the word."""
    folders = ("protos", "specdec", "drafter_service", "verifier_service", "gateway")
    paths = (path for folder in folders for path in (ROOT / folder).rglob("*"))
    found = (path for path in paths if path.suffix in (".py", ".proto", ".cpp"))
    return {
        str(path.relative_to(ROOT))
        for path in found
        if "_pb2" not in path.name and re.search(rf"\b{word}\b", path.read_text(encoding="utf-8"))
    }


def test_the_recipe_names_the_files_of_its_example() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    recipe = page[page.index("## Recipe: a sampling parameter") :]
    rows = re.findall(r"^\| `([^`]+)` \|", recipe, flags=re.MULTILINE)
    assert set(rows) == files_with(EXAMPLE)
    assert len(rows) <= MOST


@pytest.mark.parametrize("name", sorted({field.name for field in fields(SamplingParams)} - SPREAD))
def test_a_parameter_takes_few_files(name: str) -> None:
    assert len(files_with(name)) <= MOST
