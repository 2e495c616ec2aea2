"""`specdec up` serves any pair of decoder-only models that share a tokenizer."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.e2e.clients import client_of
from tests.e2e.system import NO_DRAFT_IS_LATE, running_system
from tests.support.tiny_models import END_TOKEN_ID, make_tiny_model

PROMPT = [5, 9, 33, 120, 7, 61]


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gpt2", "gemma2"])
def test_a_pair_made_on_the_spot_gives_the_tokens_of_transformers(tmp_path: Path, architecture: str) -> None:
    target, drafter = tmp_path / "target", tmp_path / "drafter"
    make_tiny_model(target, architecture, seed=1)
    make_tiny_model(drafter, architecture, seed=1, noise=0.005)
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    expected = model.generate(
        torch.tensor([PROMPT]), max_new_tokens=60, do_sample=False, eos_token_id=None, pad_token_id=END_TOKEN_ID
    )[0, len(PROMPT) :].tolist()
    with running_system(tmp_path, "--target", str(target), "--drafter", str(drafter), **NO_DRAFT_IS_LATE) as system:
        client = client_of(system)
        answer = client.completions.create(
            model=client.models.list().data[0].id,
            prompt=PROMPT,
            max_tokens=60,
            temperature=0,
            extra_body={"ignore_eos": True, "return_token_ids": True, "speculation": {"gamma": 4}},
        )
    assert answer.choices[0].token_ids == expected
    assert answer.metrics["speculative_decoding"]["num_accepted_draft_tokens"] > 0
