"""What sampling parameters change in logits before they become a distribution: bias, masks and penalties.

The changes are listed row by row on the host and then applied to all rows at once.
"""

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specdec.errors import TokenOutOfRange
from specdec.rules.params import SamplingParams
from specdec.rules.transfer import to_device

_LEAST_REPETITION_PENALTY = 1e-6
"""Dividing by less could overflow to infinity, which is no distribution."""


@dataclass(slots=True)
class LogitEdits:
    """The changes to a batch of logits; places are indices into the flat logits [R · V]."""

    vocab_size: int
    biased: list[int] = field(default_factory=list)
    """Places that a bias is added to."""
    """Places that a bias is added to."""
    bias: list[float] = field(default_factory=list)
    """The bias of each place in `biased`."""
    restricted: list[int] = field(default_factory=list)
    """Rows in which only the places in `allowed` are possible."""
    allowed: list[int] = field(default_factory=list)
    """The possible places of the rows in `restricted`."""
    """The possible places of the rows in `restricted`."""
    banned: list[int] = field(default_factory=list)
    """Places that must not be drawn."""
    """Places that must not be drawn."""
    seen: list[int] = field(default_factory=list)
    """Places of tokens in the text so far, each once."""
    repetition: list[float] = field(default_factory=list)
    """Repetition penalty of each place in `seen`: it divides positive logits and multiplies negative ones."""
    less: list[float] = field(default_factory=list)
    """Presence and frequency penalty of each place in `seen`, subtracted after the repetition penalty."""

    def add(self, row: int, params: SamplingParams, prompt: Sequence[int], output: Sequence[int]) -> None:
        """List the changes that the parameters of one row ask for.

        Raises:
            TokenOutOfRange: an id is outside the vocabulary.
        """
        self.biased += self._places(row, params.logit_bias, "logit_bias")
        self.bias += params.logit_bias.values()
        if params.allowed_token_ids:
            self.restricted.append(row)
            self.allowed += self._places(row, params.allowed_token_ids, "allowed_token_ids")
        self.banned += self._places(row, params.banned_token_ids, "banned_token_ids")
        if len(output) < params.min_tokens:
            self.banned += self._places(row, params.end_token_ids, "end_token_ids")
        self._penalise(row, params, prompt, output)

    def _penalise(self, row: int, params: SamplingParams, prompt: Sequence[int], output: Sequence[int]) -> None:
        """List penalties: repetition counts prompt and output (CTRL, arXiv 1909.05858), the others count the output."""
        repeated = params.repetition_penalty != 1.0
        if not (repeated or params.presence_penalty or params.frequency_penalty):
            return
        less = dict.fromkeys(prompt if repeated else (), 0.0)
        for token, count in Counter(output).items():
            less[token] = params.presence_penalty + params.frequency_penalty * count
        self.seen += self._places(row, less, "tokens")
        self.repetition += [max(params.repetition_penalty, _LEAST_REPETITION_PENALTY)] * len(less)
        self.less += less.values()

    def _places(self, row: int, ids: Collection[int], param: str) -> list[int]:
        if ids and not 0 <= min(ids) <= max(ids) < self.vocab_size:
            raise TokenOutOfRange(f"{param} holds an id outside the vocabulary of {self.vocab_size}", param)
        return [row * self.vocab_size + token for token in ids]

    def apply(self, scores: Tensor) -> None:
        """Apply the changes in place to logits [R, V], which must be contiguous."""
        places = (self.biased, self.restricted, self.allowed, self.banned, self.seen)
        biased, restricted, allowed, banned, seen, bias, repetition, less = to_device(
            scores.device,
            *(torch.tensor(each, dtype=torch.int64) for each in places),
            *(torch.tensor(each, dtype=torch.float64) for each in (self.bias, self.repetition, self.less)),
        )
        flat = scores.view(-1)
        if self.biased:
            flat[biased] += bias.to(flat.dtype)
        if self.restricted:
            kept = flat[allowed]
            scores.index_fill_(0, restricted, -math.inf)
            flat[allowed] = kept
        if self.banned:
            flat.index_fill_(0, banned, -math.inf)
        if self.seen:
            old, penalty = flat[seen], repetition.to(flat.dtype)
            flat[seen] = torch.where(old > 0, old / penalty, old * penalty) - less.to(flat.dtype)
