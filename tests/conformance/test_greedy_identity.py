"""Greedy tokens of the engine equal those of plain `transformers` generation, for any sessions that share the pass.

The tests run in float32, because bfloat16 flips near-ties between batch shapes.
"""

from pathlib import Path

import pytest

from specdec.engine import NativeEngine
from tests.conformance.greedy_identity import NEW_TOKENS, PROMPTS, answers, speculated
from tests.support.tiny_models import ARCHITECTURES, WINDOW, make_tiny_model

pytestmark = pytest.mark.integration

WINDOWED = ("mistral", "gemma2", "qwen2", "gpt_oss")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_speculated_greedy_tokens_are_those_of_plain_generation(architecture: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, architecture, seed=1, layers=3, padding=7)
    engine = NativeEngine.load(folder, dtype="float32", device="cpu", kv_bytes=1 << 22, threads=1)
    for session in speculated(engine, answers(folder)):
        assert session.output[:NEW_TOKENS] == session.answer
        assert session.accepted > 5
        assert session.rejected > 5


@pytest.mark.parametrize("architecture", WINDOWED)
def test_the_texts_are_longer_than_the_windows(architecture: str) -> None:
    assert ARCHITECTURES[architecture]["sliding_window"] == WINDOW < min(map(len, PROMPTS.values())) + NEW_TOKENS
