"""Texts that the target writes, with its tapped states and the distribution of each token, stored on disk."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from specdec.engine.batch import Chunk
from specdec.engine.native import NativeEngine
from specdec.training.answers import KEPT, pick
from specdec.training.checkpoint import write_whole


class TextStart(NamedTuple):
    """Tokens that a text starts with."""

    tokens: Sequence[int]
    begin: int
    """Position of the first token that the target wrote, at least 1. The tokens before it are not taught."""


@dataclass(frozen=True)
class TargetText:
    """A text of n tokens."""

    tokens: Tensor
    """Token ids, int64 [n]."""
    begin: int
    """Position of the first token that the target wrote."""
    states: Tensor
    """States of the tapped layers after each token but the last, bfloat16 [n - 1, taps · hidden]."""
    ids: Tensor
    """The target's most likely ids for each token from `begin` on, int32 [n - begin, KEPT]."""
    log_probs: Tensor
    """Natural logarithms of their probabilities at temperature 1, float16 [n - begin, KEPT]."""

    @property
    def written(self) -> int:
        """Number of tokens that the target wrote."""
        return len(self.ids)


@torch.no_grad()
def write_texts(
    engine: NativeEngine, starts: Sequence[TextStart], temperatures: Sequence[float], most: int, seed: int
) -> list[TargetText]:
    """Have the target, whose engine has taps, continue starts in one batch by at most `most` tokens each.

    Tokens are drawn from the KEPT most likely ids. The temperatures are used in turn.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = [_Row(engine, f"{seed}/{place}", start, most) for place, start in enumerate(starts)]
    warmth = torch.tensor([temperatures[place % len(temperatures)] for place in range(len(rows))])
    live = torch.arange(len(rows))
    logits = torch.cat([row.prefill() for row in rows])
    for left in range(most - 1, -1, -1):
        likely = _likely(logits)
        chosen = likely.ids.gather(-1, pick(likely.log_probs, warmth[live, None], generator))[:, 0].tolist()
        for place, row in enumerate(live.tolist()):
            rows[row].append(chosen[place], likely.part(slice(place, place + 1)))
        live = live[torch.tensor([token not in engine.facts.end_token_ids for token in chosen])]
        going = [rows[row] for row in live.tolist()]
        if not going or not left:
            break
        logits, layers = engine.forward_with_states([Chunk(row.name, row.tokens[-1:], 1) for row in going])
        for row, state in zip(going, torch.cat(layers, -1)[:, None], strict=True):
            row.states.append(state)
    for row in rows:
        engine.release(row.name)
    return [row.text() for row in rows]


@torch.no_grad()
def read_texts(engine: NativeEngine, texts: Sequence[TextStart]) -> list[TargetText]:
    """Have the target, whose engine has taps, compute the states and distributions of whole texts."""
    found = []
    for place, text in enumerate(texts):
        row = _Row(engine, f"read/{place}", TextStart(text.tokens[:-1], text.begin), 1)
        row.append(text.tokens[-1], _likely(row.prefill()))
        engine.release(row.name)
        found.append(row.text())
    return found


def save_texts(path: Path, texts: Sequence[TargetText]) -> None:
    """Write texts to a file, whole or not at all."""
    write_whole(path, [vars(text) for text in texts])


def load_texts(path: Path) -> list[TargetText]:
    """Return the texts of a file, which is mapped to memory, so that only what is used is read."""
    return [TargetText(**text) for text in torch.load(path, weights_only=True, mmap=True)]


class _Likely(NamedTuple):
    """Most likely ids and the logarithms of their probabilities, both [rows, KEPT]."""

    ids: Tensor
    log_probs: Tensor

    def part(self, rows: slice) -> "_Likely":
        return _Likely(self.ids[rows], self.log_probs[rows])


def _likely(logits: Tensor) -> _Likely:
    values, ids = logits.topk(min(KEPT, logits.shape[-1]))
    return _Likely(ids.cpu(), (values - logits.logsumexp(-1, keepdim=True)).cpu())


class _Row:
    """A text in the making."""

    def __init__(self, engine: NativeEngine, name: str, start: TextStart, most: int) -> None:
        self.name = name
        self.tokens = list(start.tokens)
        self.states: list[Tensor] = []
        self._begin = start.begin
        self._likely: list[_Likely] = []
        self._engine = engine
        limit = len(self.tokens) + most
        # In a domain of its own, since reused keys and values come without states.
        if not engine.admit(name, limit, (), name) or not engine.reserve(name, limit):
            raise MemoryError(f"no memory for the keys and values of {limit} tokens")

    def prefill(self) -> Tensor:
        """Compute the start. Return the logits after it [1, V]."""
        logits, layers = self._engine.forward_with_states([
            Chunk(self.name, self.tokens, len(self.tokens) - self._begin + 1)
        ])  # fmt: skip
        self.states.append(torch.cat(layers, -1))
        self._likely.append(_likely(logits[:-1]))
        return logits[-1:]

    def append(self, token: int, likely: _Likely) -> None:
        self.tokens.append(token)
        self._likely.append(likely)

    def text(self) -> TargetText:
        ids, log_probs = (torch.cat(column) for column in zip(*self._likely, strict=True))
        states = torch.cat(self.states)[: len(self.tokens) - 1].to("cpu", torch.bfloat16)
        return TargetText(torch.tensor(self.tokens), self._begin, states, ids.int(), log_probs.half())
