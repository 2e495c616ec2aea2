"""Near ties of an answer are found, in greedy and in coupled mode."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from specdec.rules.coupling import draw
from tests.chaos.near_ties import Judge
from tests.support.tiny_models import make_tiny_model

PROMPT = [5, 9, 17]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "target", "llama", seed=0)


def answer(target: Path, seed: int | None, length: int = 12) -> list[int]:
    """Return the model's output, generated one token at a time."""
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    tokens = list(PROMPT)
    for _ in range(length):
        with torch.inference_mode():
            p = model(torch.tensor([tokens])).logits[0, -1:].softmax(-1)
        tokens.append(int(p.argmax() if seed is None else draw(p, [seed], [len(tokens)])[0]))
    return tokens[len(PROMPT) :]


@pytest.mark.parametrize("seed", [None, 3])
def test_only_an_answer_within_the_margin_is_a_near_tie(
    target: Path, seed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge, said = Judge(target), answer(target, seed)
    assert not judge.has_near_tie(PROMPT, said, seed)
    monkeypatch.setattr("tests.chaos.near_ties._MARGIN", 0.5)
    assert judge.has_near_tie(PROMPT, said, seed)
