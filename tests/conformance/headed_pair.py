"""A target of eight ids and a draft head of it that knows five of them, with the target's laws."""

from functools import cache
from pathlib import Path
from typing import Any

import torch

from specdec.sampling.params import SamplingParams
from tests.conformance.automata import LOOP
from tests.conformance.g_test import Law
from tests.conformance.model_folders import root
from tests.conformance.plain_model import PlainModel
from tests.conformance.small_pair import END, PROMPT, VOCAB_SIZE
from tests.support.tiny_heads import make_tiny_head
from tests.support.tiny_models import make_tiny_model

LENGTH = 4
"""Tokens of a law."""
DRAFT_IDS = torch.tensor([0, 1, 3, 5, 6])
PARAMS = {
    "T=1": SamplingParams(),
    "T=0": SamplingParams(temperature=0.0),
    "top-p": SamplingParams(temperature=0.8, top_p=0.8),
    "penalties": SamplingParams(
        presence_penalty=1.0, frequency_penalty=0.8, repetition_penalty=1.4, min_tokens=2, end_token_ids=(END,)
    ),
    "masks": SamplingParams(banned_token_ids=(1,), allowed_token_ids=(END, 1, 2, 4, 6)),
    "grammar": SamplingParams(grammar=LOOP),
}


@cache
def folders() -> tuple[Path, Path, PlainModel]:
    """Return the target, its head, and the target run by transformers."""
    target = make_tiny_model(root() / "headed", seed=3, spread=0.3, vocab_size=VOCAB_SIZE, layers=3, context=64)
    shape: dict[str, Any] = {"vocab": VOCAB_SIZE, "draft_vocab": len(DRAFT_IDS), "ids": DRAFT_IDS}
    return target, make_tiny_head(root() / "head", taps=(1, 2, 0), spread=0.7, seed=2, **shape), PlainModel(target)


@cache
def law_of(params: str) -> Law:
    """Return the target's law, by transformers."""
    return folders()[2].law(PARAMS[params], PROMPT, LENGTH, END)
