"""Checks of the engine against plain `transformers`: greedy tokens under ragged batches, chunks and rollback."""

from functools import cache
from pathlib import Path

from specdec.engine import Engine
from tests.conformance.checks.value import Check, count
from tests.conformance.folders import root
from tests.conformance.greedy import answers, differing
from tests.tiny_models import make_tiny_model

PADDING = 7
"""Rows of the models' matrices beyond their tokenizers' ids."""


@cache
def tiny(architecture: str) -> Path:
    """The folder of a three-layer model of that architecture."""
    return make_tiny_model(root() / architecture, architecture, seed=1, layers=3, padding=PADDING)


@cache
def plain(architecture: str) -> dict[str, list[int]]:
    """What transformers generates."""
    return answers(tiny(architecture))


def wrong_tokens(architecture: str) -> float:
    """Greedy tokens of ours that are not those of transformers."""
    expected = plain(architecture)
    engine = Engine.load(tiny(architecture), dtype="float32", device="cpu", kv_bytes=1 << 22, threads=1)
    return differing(engine, expected)


CHECKS: tuple[Check, ...] = (
    count("greedy identity, llama", lambda: wrong_tokens("llama"), crosses_a_border=True),
    count("greedy identity, gemma2", lambda: wrong_tokens("gemma2"), crosses_a_border=True),
)
