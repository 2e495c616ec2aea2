"""A head over whole texts: the chain of drafts after each position, with gradients, its loss and its α.

This is EAGLE-3's training-time test: further steps read the head's own state of the step before, so that the head
learns to go on from its own states. The chain is fed the text's tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from specdec.engine.heads.eagle3 import Eagle3Head
from specdec.training.heads.texts import TargetText
from specdec.training.losses import blend, divergence_of

STEPS = 3
"""Drafts of a chain."""
_STRIDE, _ROWS = 64, 256
"""Lengths of texts and numbers of rows are rounded to multiples, since oneDNN builds kernels for each new shape."""
CHAINED = 0.75
"""Progress of a training from which chains have STEPS drafts; before, they have one, which takes half the time."""
_DECAY = 0.8
"""Weight of each step's loss, relative to the step before."""


@dataclass(frozen=True)
class TextBatch:
    """Texts, padded at the end, and what the drafts after each of N positions are compared with."""

    states: Tensor
    """[B, T, taps · hidden]"""
    tokens: Tensor
    """[B, T + STEPS]"""
    start: int
    """First position that drafts."""
    drafting: Tensor
    """Whether each position from `start` on drafts, bool [B, T - start]; N do."""
    likely: Sequence[tuple[Tensor, Tensor]]
    """The target's most likely ids and the logarithms of their probabilities at each step, [N, KEPT] each."""


def batch_of(texts: Sequence[TargetText], device: torch.device) -> TextBatch:
    """Pad texts to one batch. The last token before the target's own is the first position that drafts."""
    count = -(-max(len(text.states) for text in texts) // _STRIDE) * _STRIDE
    start = (min(text.begin for text in texts) - 1) // _STRIDE * _STRIDE
    states = torch.zeros(len(texts), count, texts[0].states.shape[1], dtype=torch.bfloat16)
    tokens = torch.zeros(len(texts), count + STEPS, dtype=torch.int64)
    rows = torch.zeros(len(texts), count + STEPS + 1, dtype=torch.int64)
    drafting = torch.zeros(len(texts), count, dtype=torch.bool)
    known = 0
    for place, text in enumerate(texts):
        length = len(text.tokens)
        states[place, : length - 1], tokens[place, :length] = text.states, text.tokens
        rows[place, text.begin : length] = torch.arange(known, known + text.written)
        drafting[place, text.begin - 1 : max(0, length - STEPS - 1)] = True
        known += text.written
    drafting = drafting[:, start:]
    ids, log_probs = torch.cat([text.ids for text in texts]), torch.cat([text.log_probs for text in texts])
    found = [rows[:, start + step + 1 : count + step + 1][drafting] for step in range(1, STEPS + 1)]
    likely = [(ids[each].to(device), log_probs[each].float().to(device)) for each in found]
    return TextBatch(states.to(device), tokens.to(device), start, drafting.to(device), likely)


def rollout(head: Eagle3Head, batch: TextBatch, steps: int = STEPS) -> Iterator[Tensor]:
    """Yield the logits of the draft ids [N, draft ids]; step k after position t guesses token t + k + 1."""
    count, start, shape = batch.states.shape[1], batch.start, batch.drafting.shape
    places = torch.arange(count, device=batch.states.device)
    unseen = places[None, :] > places[start:, None]
    drafting = batch.drafting.flatten().nonzero()[:, 0]
    rows = pad(drafting, (0, -len(drafting) % _ROWS))
    residual, query, keys, values = _projected(head, head.fuse(batch.states), batch.tokens[:, 1 : count + 1], places)
    residual, query = residual[:, start:].flatten(0, 1)[rows], query[:, :, start:]
    positions = places[start:].repeat(len(batch.tokens))[rows]
    chain: list[tuple[Tensor, Tensor]] = []
    for step in range(1, steps + 1):
        scores = (query @ keys.transpose(-1, -2)).masked_fill(unseen, -torch.inf)
        own = [(query * key).sum(-1, keepdim=True) for key, _ in chain]
        weights = (torch.cat([scores, *own], -1).float() * head.scale).softmax(-1).to(values.dtype)
        attended = weights[..., :count] @ values
        for place, (_, value) in enumerate(chain, count):
            attended = attended + weights[..., place, None] * value
        normed, fed = head.outputs(residual, attended.transpose(1, 2).flatten(0, 1)[rows].flatten(-2))
        yield head.lm_head(normed)[: len(drafting)].float()
        if step < steps:
            tokens = batch.tokens[:, start + step + 1 : count + step + 1].flatten()[rows]
            residual, *projected = _projected(head, fed, tokens, positions + step)
            query, key, value = (_spread(each[:, : len(drafting)], drafting, shape) for each in projected)
            chain.append((key, value))


def _projected(
    head: Eagle3Head, fed: Tensor, tokens: Tensor, positions: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the residual, and queries, keys and values [..., query heads, T, head width]."""
    both, residual = head.inputs(fed, tokens)
    query, key, value = head.projected(both, positions)
    groups = query.shape[-3] // key.shape[-3]
    return residual, query, key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)


def _spread(rows: Tensor, drafting: Tensor, shape: torch.Size) -> Tensor:
    """Return rows [heads, N, width] of the drafting positions in place among all [B, heads, T - start, width]."""
    whole = rows.new_zeros(shape.numel(), len(rows), rows.shape[-1]).index_copy(0, drafting, rows.transpose(0, 1))
    return whole.view(*shape, *whole.shape[1:]).transpose(1, 2)


def loss_of(head: Eagle3Head, batch: TextBatch, places: Tensor, progress: float) -> Tensor:
    """Return the loss. `places` is the draft id of each id of the target, -1 for none; `progress` is from 0 to 1."""
    weights, steps = blend(progress), STEPS if progress >= CHAINED else 1
    losses = [
        _DECAY**step * divergence_of(*likely, places, logits, weights)
        for step, (likely, logits) in enumerate(zip(batch.likely[:steps], rollout(head, batch, steps), strict=True))
    ]
    return torch.stack(losses).sum()


@dataclass(frozen=True)
class HeadAlpha:
    """Acceptance rates α of texts, by the position of a draft, given that the drafts before it are accepted."""

    sampled: tuple[float, ...]
    """Mean of Σ min(p, q) at temperature 1, over the target's KEPT most likely ids."""
    greedy: tuple[float, ...]
    """Share of drafts that are the target's choice at temperature 0."""
    coverage: float
    """Mean probability that the target gives to the draft ids, at temperature 1."""
    tokens: int


def alpha_of(head: Eagle3Head, ids: Tensor, sampled: Sequence[TargetText], greedy: Sequence[TargetText]) -> HeadAlpha:
    """Measure a head with draft ids `ids`, on texts that the target wrote at temperatures 1 and 0."""
    places = places_of(ids, head.config.layer.vocab_size)
    overlaps, _, covered = _judged(head, sampled, places)
    _, same, _ = _judged(head, greedy, places)
    return HeadAlpha(_conditional(overlaps), _conditional(same), covered.mean().item(), len(overlaps) + len(same))


def places_of(ids: Tensor, vocabulary: int) -> Tensor:
    """Return the place of each id of the vocabulary among ids; -1 for none."""
    return torch.full((vocabulary,), -1).index_copy_(0, ids.cpu(), torch.arange(len(ids))).to(ids.device)


@torch.no_grad()
def _judged(head: Eagle3Head, texts: Sequence[TargetText], places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return Σ min(p, q), whether the choices agree, both [N, STEPS], and the covered probability [N]."""
    overlaps, same, covered = [], [], []
    for text in texts:
        batch = batch_of([text], places.device)
        steps = list(zip(batch.likely, rollout(head, batch), strict=True))
        columns = [_compared(*likely, places, logits) for likely, logits in steps]
        overlaps.append(torch.stack([overlap for overlap, _, _ in columns], 1))
        same.append(torch.stack([agree for _, agree, _ in columns], 1))
        covered.append(columns[0][2])
    return torch.cat(overlaps), torch.cat(same), torch.cat(covered)


def _compared(ids: Tensor, log_probs: Tensor, places: Tensor, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    at = places[ids.long()]
    p = log_probs.exp() * (at >= 0)
    q = logits.softmax(-1).gather(-1, at.clamp(min=0))
    return torch.minimum(p, q).sum(-1), (logits.argmax(-1) == at[:, 0]).float(), p.sum(-1)


def _conditional(rates: Tensor) -> tuple[float, ...]:
    """Return the mean rate of each step [N, STEPS], weighted by the chance that the steps before it are accepted."""
    reached = torch.cat([torch.ones(len(rates), 1, device=rates.device), rates.cumprod(-1)], -1).sum(0)
    return tuple((reached[1:] / reached[:-1].clamp(min=1e-9)).tolist())
