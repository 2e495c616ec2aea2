"""Greedy generation by the engine, compared with plain `transformers`.

Every session is prefilled in chunks while other sessions decode. It verifies drafts that are wrong at chosen positions
and rolls back the rejected ones.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from specdec.engine import Chunk, NativeEngine

NEW_TOKENS = 40
VOCAB = 320
PREFILL = 7
GAMMAS = (0, 3, 1, 5, 2)
ROUNDS = 400
"""A bound on the rounds, above what sound code needs."""
PROMPTS = {
    "long": [(7 + 31 * i * i) % VOCAB for i in range(45)],
    "middle": [(11 + 17 * i * i) % VOCAB for i in range(17)],
    "short": [5, 300],
}


@dataclass
class Greedy:
    """One session: its committed tokens, and a drafter that knows the answer but is wrong at every third token."""

    name: str
    prompt: list[int]
    answer: list[int]
    gammas: Iterator[int]
    output: list[int] = field(default_factory=list)
    accepted: int = 0
    rejected: int = 0

    def next_chunk(self, length: int) -> Chunk:
        """Return the next piece of the prompt until one token is without KV, then the pending token and a draft."""
        pending = (self.prompt + self.output)[length:]
        if len(pending) > PREFILL:
            return Chunk(self.name, pending[:PREFILL], 0)
        draft = self._draft(next(self.gammas))
        return Chunk(self.name, pending + draft, len(draft) + 1)

    def verify(self, engine: NativeEngine, chunk: Chunk, logits: Tensor) -> None:
        """Commit the drafts that equal the argmax, and the argmax after them."""
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
        return [(token + (start + i) % 3 // 2) % VOCAB for i, token in enumerate(right)]


def answers(folder: Path) -> dict[str, list[int]]:
    """Return the tokens that transformers generates for each prompt."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    model.generation_config.eos_token_id = None
    found = {}
    for name, prompt in PROMPTS.items():
        ids = torch.tensor([prompt])
        # The padding columns of these models' matrices are not ids of their tokenizers.
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            suppress_tokens=list(range(VOCAB, model.config.vocab_size)),
        )
        found[name] = out[0, len(prompt) :].tolist()
    return found


def speculated(engine: NativeEngine, expected: dict[str, list[int]]) -> list[Greedy]:
    """Run rounds over all unfinished sessions. Each session skips every fourth round, so that the batch varies."""
    sessions = [
        Greedy(name, prompt, expected[name], cycle(GAMMAS[i:] + GAMMAS[:i]))
        for i, (name, prompt) in enumerate(PROMPTS.items())
    ]
    for session in sessions:
        engine.admit(session.name, len(session.prompt) + NEW_TOKENS + max(GAMMAS))
    for number in range(ROUNDS):
        live = [s for i, s in enumerate(sessions) if len(s.output) < NEW_TOKENS and (number + i) % 4]
        chunks = [session.next_chunk(engine.length(session.name)) for session in live]
        logits = engine.forward(chunks).split_with_sizes([chunk.logits for chunk in chunks])
        for session, chunk, rows in zip(live, chunks, logits, strict=True):
            session.verify(engine, chunk, rows)
        if all(len(session.output) >= NEW_TOKENS for session in sessions):
            break
    return sessions


def differing(engine: NativeEngine, expected: dict[str, list[int]]) -> int:
    """Count tokens of the engine that differ from those expected."""
    return sum(
        ours != theirs
        for session in speculated(engine, expected)
        for ours, theirs in zip(session.output, session.answer, strict=False)
    )
