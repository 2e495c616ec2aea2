"""A padded model computes the same as the small one."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from benchmarks.gpu.padded import Size, pad_model
from tests.support.tiny_models import make_tiny_model

IDS = torch.tensor([[5, 9, 200, 31, 7, 7, 118]])
VOCABULARY = 320


def logits(folder: Path) -> Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).float().eval()
    with torch.inference_mode():
        found: Tensor = model(IDS).logits[0, :, :VOCABULARY]
    return found


@pytest.mark.parametrize(
    ("size", "tolerance"),
    [
        (Size(hidden=128, intermediate=200, layers=4, heads=16, kv_heads=4, vocabulary=400), 1e-5),
        (Size(hidden=64, intermediate=48, layers=2, heads=8, kv_heads=2, vocabulary=VOCABULARY), 1e-2),
    ],
    ids=["four times as wide", "twice as wide, which rounds"],
)
def test_its_logits_are_those_of_the_small_model(tmp_path: Path, size: Size, tolerance: float) -> None:
    small = make_tiny_model(tmp_path / "small", layers=2, tie_word_embeddings=True)
    pad_model(small, tmp_path / "large", size, torch.device("cpu"))
    expected = logits(small)
    error = (logits(tmp_path / "large") - expected).norm() / expected.norm()
    assert error < tolerance
    assert (tmp_path / "large" / "model.safetensors").stat().st_size > (small / "model.safetensors").stat().st_size
