"""Proposed beams are those that the draft model's own search finds after the target's beams."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from drafter_service.drafters.beam_drafter import propose_beams
from drafter_service.sessions.drafter import run_beams
from specdec.engine import NativeEngine
from specdec.wire.beams import BeamAsk, ProposedBeam
from tests.support.tiny_models import make_tiny_model

PROMPT = (3, 5, 1, 7, 9, 2, 8)
BEAMS = (((4,), -0.5), ((6,), -0.75))
ASK = BeamAsk("", PROMPT, BEAMS, width=4, steps=3)
CHUNK = 3
Tokens = tuple[int, ...]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("beams") / "tiny", seed=3, vocab_size=40, spread=0.3)


@pytest.fixture(scope="module")
def model(folder: Path) -> NativeEngine:
    return NativeEngine.load(folder, dtype="float32", device="cpu", kv_bytes=2**22, threads=1)


def searched(folder: Path, ask: BeamAsk) -> list[set[Tokens]]:
    """Return the beams of each step by whole forward passes of transformers."""
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    running, found = dict(ask.beams), list[set[Tokens]]()
    for _ in range(ask.steps):
        with torch.no_grad():
            logits = plain(torch.tensor([[*ask.prompt, *tokens] for tokens in running])).logits[:, -1]
        total = logits.log_softmax(-1) + torch.tensor(list(running.values()))[:, None]
        top, index = total.reshape(-1).topk(ask.width)
        beams = list(running)
        running = {
            (*beams[place // total.shape[1]], place % total.shape[1]): score
            for place, score in zip(index.tolist(), top.tolist(), strict=True)
        }
        running = {tokens: score for tokens, score in running.items() if tokens[-1] not in ask.end_token_ids}
        found.append(set(running))
    return found


def by_step(ask: BeamAsk, proposed: Sequence[ProposedBeam]) -> list[set[Tokens]]:
    beams = [tokens for tokens, _ in ask.beams]
    for each in proposed:
        beams.append((*beams[each.parent], each.token))
    return [{tokens for tokens in beams if len(tokens) == 2 + step} for step in range(ask.steps)]


@pytest.mark.parametrize("ends", [(), (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)])
def test_they_are_those_of_the_models_own_search(model: NativeEngine, folder: Path, ends: Tokens) -> None:
    ask = BeamAsk("", PROMPT, BEAMS, ASK.width, ASK.steps, ends)
    assert by_step(ask, run_beams(propose_beams(model, ask, CHUNK))) == searched(folder, ask)
    assert model.memory.live == 0


def test_without_memory_for_them_there_are_none(folder: Path) -> None:
    small = NativeEngine.load(folder, dtype="float32", device="cpu", kv_bytes=2**15, threads=1)
    assert run_beams(propose_beams(small, ASK, CHUNK)) == []
    assert small.memory.live == 0


def test_closed_they_free_their_memory(model: NativeEngine) -> None:
    passes = propose_beams(model, ASK, CHUNK)
    next(passes)
    assert model.memory.live > 0
    passes.close()
    assert model.memory.live == 0
