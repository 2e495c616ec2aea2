"""Texts that the target writes, with its tapped states and the distribution of each token, stored on disk."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from specdec.engine.batch import Chunk
from specdec.engine.native import NativeEngine
from specdec.training.answers import KEPT, pick
from specdec.training.checkpoint import write_whole

_PASS_TOKENS = 512
"""Tokens of a pass over several starts; a longer start has a pass of its own."""


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
    logits = _prefilled(engine, rows)
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
    rows = [
        _Row(engine, f"read/{place}", TextStart(each.tokens[:-1], each.begin), 1) for place, each in enumerate(texts)
    ]
    likely = _likely(_prefilled(engine, rows))
    for place, (row, text) in enumerate(zip(rows, texts, strict=True)):
        row.append(text.tokens[-1], likely.part(slice(place, place + 1)))
        engine.release(row.name)
    return [row.text() for row in rows]


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


def _prefilled(engine: NativeEngine, rows: Sequence["_Row"]) -> Tensor:
    """Compute the starts of rows in few passes. Return the logits after them [rows, V]."""
    last, waiting = [], list(rows)
    while waiting:
        ends = accumulate(len(row.tokens) for row in waiting)
        count = max(1, sum(end <= _PASS_TOKENS for end in ends))
        part, waiting = waiting[:count], waiting[count:]
        chunks = [row.start() for row in part]
        logits, layers = engine.forward_with_states(chunks)
        each = torch.split(logits, [chunk.logits for chunk in chunks])
        states = torch.split(torch.cat(layers, -1), [len(chunk.tokens) for chunk in chunks])
        last += [row.started(*own) for row, *own in zip(part, each, states, strict=True)]
    return torch.cat(last)


class _Row:
    """A text in the making."""

    def __init__(self, engine: NativeEngine, name: str, start: TextStart, most: int) -> None:
        self.name = name
        self.tokens = list(start.tokens)
        self.states: list[Tensor] = []
        self._begin = start.begin
        self._likely: list[_Likely] = []
        limit = len(self.tokens) + most
        # In a domain of its own, since reused keys and values come without states.
        if not engine.admit(name, limit, (), name) or not engine.reserve(name, limit):
            raise MemoryError(f"no memory for the keys and values of {limit} tokens")

    def start(self) -> Chunk:
        """Return the start, with logits from the last token before the target's own on."""
        return Chunk(self.name, self.tokens, len(self.tokens) - self._begin + 1)

    def started(self, logits: Tensor, states: Tensor) -> Tensor:
        """Keep what the pass over the start gave. Return the logits after it [1, V]."""
        self.states.append(states)
        self._likely.append(_likely(logits[:-1]))
        return logits[-1:].clone()  # a view would keep the whole pass

    def append(self, token: int, likely: _Likely) -> None:
        self.tokens.append(token)
        self._likely.append(likely)

    def text(self) -> TargetText:
        ids, log_probs = (torch.cat(column) for column in zip(*self._likely, strict=True))
        states = torch.cat(self.states)[: len(self.tokens) - 1].to("cpu", torch.bfloat16)
        return TargetText(torch.tensor(self.tokens), self._begin, states, ids.int(), log_probs.half())
