"""A tiny target, and the output of plain transformers for its prompts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from specdec.engine import NativeEngine

PROMPT = (40, 41, 42, 43, 44, 45, 46)
LENGTH = 40
"""Number of output tokens of the reference."""


@dataclass(frozen=True)
class Target:
    """A tiny model and the output of plain transformers for prompts."""

    folder: Path
    tokenizer_hash: str
    greedy: Callable[[Sequence[int], int], list[int]]


def load_target(folder: Path) -> Target:
    """Load a folder with transformers."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    @cache
    def remembered(prompt: tuple[int, ...], count: int) -> list[int]:
        ids = torch.tensor([prompt])
        made = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=count,
            eos_token_id=None,
            pad_token_id=0,
        )
        return list(made[0, len(prompt) :].tolist())

    engine = NativeEngine.load(folder, dtype="float32", device="cpu", kv_bytes=2**20, threads=1)
    return Target(folder, engine.tokenizer_hash, lambda prompt, count: remembered(tuple(prompt), count))
