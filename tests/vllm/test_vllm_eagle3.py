"""vLLM's own EAGLE-3 path runs the same target and head: its states, tap by tap, and its greedy drafts are ours."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from specdec.engine.batch import Chunk
from specdec.engine.heads.headed import HeadedEngine
from tests.support.tiny_heads import Layout, Options, make_tiny_head
from tests.support.tiny_models import make_tiny_model
from tests.vllm.programs import run
from tests.vllm.server import HAS_VLLM

pytestmark = [HAS_VLLM, pytest.mark.integration, pytest.mark.timeout(900)]

LAYERS, VOCABULARY, GAMMA = 4, 64, 3
TAPS = (1, 2, 3)
HEADS: dict[str, tuple[Layout, Options]] = {
    "EAGLE-3": ("eagle", Options()),
    "speculators": ("speculators", Options(fc_norm=True, norm_output=True)),
}
PROGRAM = """
import os
import sys

import torch
from vllm import LLM, SamplingParams
from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

NAMES = ("target_positions", "target_hidden_states", "next_token_ids", "token_indices_to_sample")
calls, propose = [], SpecDecodeBaseProposer.propose


def recorded(self, **given):
    kept = [None if given[name] is None else given[name].clone() for name in NAMES]
    drafts = propose(self, **given)
    calls.append((*kept, drafts.clone()))
    return drafts


if __name__ == "__main__":
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    SpecDecodeBaseProposer.propose = recorded
    prompt = list(map(int, sys.argv[4].split()))
    engine = LLM(
        sys.argv[1], dtype="float32", enforce_eager=True, max_model_len=256, skip_tokenizer_init=True,
        kv_cache_memory_bytes=2**24, seed=0,
        speculative_config={"method": "eagle3", "model": sys.argv[2], "num_speculative_tokens": 3},
    )
    options = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, detokenize=False)
    (found,) = engine.generate({"prompt_token_ids": prompt}, options)
    torch.save((calls, [*prompt, *found.outputs[0].token_ids]), sys.argv[3])
"""


def make_pair(folder: Path, name: str) -> tuple[Path, Path]:
    """Write a target and a head with heads as wide as vLLM's attention on a CPU needs."""
    wide: dict[str, Any] = {"head_dim": 32, "num_key_value_heads": 2}
    target = make_tiny_model(
        folder / "target", seed=3, spread=0.25, layers=LAYERS, vocab_size=VOCABULARY, context=256, **wide
    )
    layout, options = HEADS[name]
    head = make_tiny_head(
        folder / "head", layout, options, taps=TAPS, vocab=VOCABULARY, draft_vocab=40, head_dim=32, spread=0.4
    )
    return target, head


@pytest.mark.parametrize("name", HEADS)
def test_states_and_drafts_are_those_of_vllms_own_path(name: str, tmp_path: Path) -> None:
    target, head = make_pair(tmp_path, name)
    prompt = [1 + (at * at + 3 * at) % 61 for at in range(30)]
    run(PROGRAM, tmp_path, str(target), str(head), str(tmp_path / "calls"), " ".join(map(str, prompt)))
    calls, tokens = torch.load(tmp_path / "calls")
    assert len(calls) > 8
    with torch.inference_mode():
        plain = AutoModelForCausalLM.from_pretrained(target)(torch.tensor([tokens]), output_hidden_states=True)
    engine = HeadedEngine.load(
        head, target, kv_bytes=2**24, wide_threads=None, dtype="float32", device="cpu", threads=None
    )
    for number, (positions, states, following, sampled, drafts) in enumerate(calls):
        last = len(positions) - 1 if sampled is None else int(sampled[0])
        end = int(positions[last]) + 1
        for tap, found in zip(TAPS, states[: last + 1].chunk(len(TAPS), -1), strict=True):
            expected = plain.hidden_states[tap][0, end - len(found) : end]
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        if end == len(tokens):  # after the last token of the answer
            continue
        assert int(following[0]) == tokens[end]
        assert drafts[0].tolist() == drafted(engine, str(number), tokens[: end + 1])


def drafted(engine: HeadedEngine, name: str, tokens: list[int]) -> list[int]:
    """Return the greedy drafts of the native head after tokens, the last of which the target has not computed."""
    assert engine.admit(name, 200)
    engine.follow(name, 200, tokens)
    assert engine.reserve(name, 200)
    engine.forward([Chunk(name, tokens[:-1], 1)])
    assert engine.head.can_draft(name, GAMMA)
    found = [int(engine.head.begin([name], [tokens[-1]]).argmax())]
    while len(found) < GAMMA:
        found.append(int(engine.head.extend([name], [0], [found[-1]]).argmax()))
    engine.release(name)
    return found
