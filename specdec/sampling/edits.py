"""Edits of logits before they become a distribution: bias, masks and penalties.

The edits are collected in arrays on the host, and then applied to all rows at once.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdec.errors import InternalError, TokenOutOfRange
from specdec.sampling.grammar import mask_bytes
from specdec.sampling.params import SamplingParams
from specdec.sampling.transfer import to_device

Ids = NDArray[np.int64]

_LEAST_REPETITION_PENALTY = 1e-6
"""Division by a smaller penalty could overflow to infinity, which is not a distribution."""


class LogitEdits:
    """Edits of a batch of logits; places are indices into the flat logits [R · V]."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._biased: list[Ids] = []
        self._bias: list[float] = []
        self._restricted: list[int] = []
        self._allowed: list[Ids] = []
        self._banned: list[Ids] = []
        self._masked: list[int] = []
        self._masks: list[Ids] = []
        self._repeated: list[Ids] = []
        self._repetition: list[NDArray[np.float64]] = []
        self._counted: list[Ids] = []
        self._less: list[NDArray[np.float64]] = []
        self._distinct: dict[int, Ids] = {}
        """Distinct ids of a prompt, by the identity of the prompt object, which the rows of a session share."""

    def add(self, row: int, params: SamplingParams, prompt: Sequence[int], output: Sequence[int]) -> None:
        """Collect the edits for the parameters of one row.

        Raises:
            TokenOutOfRange: an id is outside the vocabulary.
        """
        ids = {name: np.frombuffer(each, np.int64) for name, each in params.id_arrays.items()}
        self._biased.append(self._places(row, ids["logit_bias"], "logit_bias"))
        self._bias += params.logit_bias.values()
        if params.allowed_token_ids:
            self._restricted.append(row)
            self._allowed.append(self._places(row, ids["allowed_token_ids"], "allowed_token_ids"))
        self._banned.append(self._places(row, ids["banned_token_ids"], "banned_token_ids"))
        if params.bad_words:
            self._banned.append(self._places(row, np.array(params.barred(output), np.int64), "bad_words"))
        if len(output) < params.min_tokens:
            self._banned.append(self._places(row, ids["end_token_ids"], "end_token_ids"))
        self._penalise(row, params, prompt, output)

    def mask(self, row: int, allowed: bytes) -> None:
        """Restrict one row to the ids of a mask in the format of `specdec.sampling.grammar`.

        Raises:
            InternalError: the mask has the length for another vocabulary.
        """
        if len(allowed) != mask_bytes(self._vocab_size):
            raise InternalError(f"a mask of {len(allowed)} bytes for a vocabulary of {self._vocab_size}")
        self._masked.append(row)
        self._masks.append(np.frombuffer(allowed, np.int64))

    def _penalise(self, row: int, params: SamplingParams, prompt: Sequence[int], output: Sequence[int]) -> None:
        """Collect penalties: repetition counts prompt and output (CTRL, arXiv 1909.05858), the others only output."""
        repeated = params.repetition_penalty != 1.0
        if not (repeated or params.presence_penalty or params.frequency_penalty):
            return
        out, counts = np.unique(np.array(output, np.int64), return_counts=True)
        self._counted.append(self._places(row, out, "tokens"))
        self._less.append(params.presence_penalty + params.frequency_penalty * counts.astype(np.float64))
        if not repeated:
            return
        known = self._distinct.get(id(prompt))
        if known is None:
            known = self._distinct[id(prompt)] = _distinct(np.array(prompt, np.int64))
        found = np.searchsorted(known, out)
        new = out if not len(known) else out[known[np.minimum(found, len(known) - 1)] != out]
        for part in (known, new):
            self._repeated.append(self._places(row, part, "tokens"))
            self._repetition.append(np.full(len(part), max(params.repetition_penalty, _LEAST_REPETITION_PENALTY)))

    def _places(self, row: int, ids: Ids, param: str) -> Ids:
        if len(ids) and not 0 <= ids.min() <= ids.max() < self._vocab_size:
            raise TokenOutOfRange(f"{param} holds an id outside the vocabulary of {self._vocab_size}", param)
        return ids + row * self._vocab_size

    def apply(self, scores: Tensor) -> None:
        """Apply the edits in place to logits [R, V], which must be contiguous."""
        places = (self._biased, self._allowed, self._banned, self._repeated, self._counted)
        biased, allowed, banned, repeated, counted, restricted, bias, repetition, less = to_device(
            scores.device,
            *(_joined(each, torch.int64) for each in places),
            torch.tensor(self._restricted, dtype=torch.int64),
            torch.tensor(self._bias, dtype=torch.float64),
            *(_joined(each, torch.float64) for each in (self._repetition, self._less)),
        )
        flat = scores.view(-1)
        if len(biased):
            flat[biased] += bias.to(flat.dtype)
        if len(restricted):
            kept = flat[allowed]
            scores.index_fill_(0, restricted, -math.inf)
            flat[allowed] = kept
        if len(banned):
            flat.index_fill_(0, banned, -math.inf)
        if self._masked:
            self._apply_masks(scores)
        if len(repeated):
            old, penalty = flat.index_select(0, repeated), repetition.to(flat.dtype)
            flat.scatter_(0, repeated, torch.where(old > 0, old / penalty, old * penalty))
        if len(counted):
            flat[counted] -= less.to(flat.dtype)

    def _apply_masks(self, scores: Tensor) -> None:
        """Set ids without a mask bit to -inf; the bits are unpacked on the device of the scores."""
        rows, words = to_device(scores.device, torch.tensor(self._masked), torch.from_numpy(np.stack(self._masks)))
        places = torch.arange(8, dtype=torch.uint8, device=scores.device)
        bits = (words.view(torch.uint8)[:, :, None] >> places) & 1
        barred = bits.view(len(rows), -1)[:, : self._vocab_size] == 0
        scores[rows] = scores[rows].masked_fill(barred, -math.inf)


def _distinct(ids: Ids) -> Ids:
    """The distinct ids in ascending order; faster than `numpy.unique` for a long prompt."""
    ordered = np.sort(ids)
    distinct: Ids = ordered[np.diff(ordered, prepend=-1) != 0]
    return distinct


def _joined(parts: "list[Ids] | list[NDArray[np.float64]]", dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(np.concatenate(parts)) if parts else torch.empty(0, dtype=dtype)
