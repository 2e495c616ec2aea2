"""Greedy tokens through the engine are those of plain `transformers` generation, whatever shares the pass.

Every session is prefilled in chunks beside sessions that already decode, verifies drafts that are wrong at chosen
places, and rolls back what was rejected.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from specdec.engine import Chunk, Engine
from tests.tiny_models import ARCHITECTURES

pytestmark = pytest.mark.integration

NEW_TOKENS = 40
PREFILL = 7
GAMMAS = (0, 3, 1, 5, 2)
PROMPTS = {
    "long": [(7 + 31 * i * i) % 320 for i in range(45)],
    "middle": [(11 + 17 * i * i) % 320 for i in range(17)],
    "short": [5, 300],
}


@dataclass
class Greedy:
    """One session: its committed tokens, and a drafter that knows the answer but errs at every third token."""

    name: str
    prompt: list[int]
    answer: list[int]
    gammas: Iterator[int]
    output: list[int] = field(default_factory=list)
    accepted: int = 0
    rejected: int = 0

    def next_chunk(self, length: int) -> Chunk:
        """The next piece of the prompt while more than one token has no KV, then the pending token and a draft."""
        pending = (self.prompt + self.output)[length:]
        if len(pending) > PREFILL:
            return Chunk(self.name, pending[:PREFILL], 0)
        draft = self._draft(next(self.gammas))
        return Chunk(self.name, pending + draft, len(draft) + 1)

    def verify(self, engine: Engine, chunk: Chunk, logits: Tensor) -> None:
        """Commit the drafts that equal the argmax, and the argmax that follows them."""
        if not chunk.logits:
            return
        draft, best = list(chunk.tokens)[len(chunk.tokens) - chunk.logits + 1 :], logits.argmax(-1).tolist()
        kept = next((i for i, token in enumerate(draft) if token != best[i]), len(draft))
        self.output += best[: kept + 1]
        self.accepted += kept
        self.rejected += len(draft) - kept
        engine.truncate(self.name, len(self.prompt) + len(self.output) - 1)

    def _draft(self, gamma: int) -> list[int]:
        start = len(self.output)
        right = self.answer[start : start + gamma]
        return [(token + (start + i) % 3 // 2) % 320 for i, token in enumerate(right)]


def plain(folder: Path) -> dict[str, list[int]]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    model.generation_config.eos_token_id = None
    answers = {}
    for name, prompt in PROMPTS.items():
        ids = torch.tensor([prompt])
        # The padding columns of these models' matrices are no ids of their tokenizers.
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            suppress_tokens=list(range(320, 327)),
        )
        answers[name] = out[0, len(prompt) :].tolist()
    return answers


def run(engine: Engine, sessions: list[Greedy]) -> None:
    """Rounds over all sessions that still need tokens; each skips every fourth round, so company varies."""
    for number in range(1000):
        live = [s for i, s in enumerate(sessions) if len(s.output) < NEW_TOKENS and (number + i) % 4]
        chunks = [session.next_chunk(engine.length(session.name)) for session in live]
        logits = engine.forward(chunks).split_with_sizes([chunk.logits for chunk in chunks])
        for session, chunk, rows in zip(live, chunks, logits, strict=True):
            session.verify(engine, chunk, rows)
        if all(len(session.output) >= NEW_TOKENS for session in sessions):
            return
    pytest.fail("the sessions never finish")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_speculated_greedy_tokens_are_those_of_plain_generation(
    architecture: str, tiny: Callable[[str], Path], load: Callable[..., Engine]
) -> None:
    answers = plain(tiny(architecture))
    engine = load(architecture)
    sessions = [
        Greedy(name, prompt, answers[name], cycle(GAMMAS[i:] + GAMMAS[:i]))
        for i, (name, prompt) in enumerate(PROMPTS.items())
    ]
    for session in sessions:
        assert engine.admit(session.name, len(session.prompt) + NEW_TOKENS + max(GAMMAS))
    run(engine, sessions)
    for session in sessions:
        assert session.output[:NEW_TOKENS] == session.answer
        assert session.accepted > 5
        assert session.rejected > 5
