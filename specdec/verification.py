"""One round's verdicts: what the target makes of a ragged batch of drafts, by the mode's rule.

Every draw at absolute position t uses (seed, t, purpose), so a verdict depends on nothing but its own rows.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specdec.acceptance import block, block_h, block_pi, rejection, residual
from specdec.coupling import coupled
from specdec.draft import MAX_WEIGHT, Draft, SparseProbs, Verdict
from specdec.errors import FieldInvalid, InternalError, TokenOutOfRange
from specdec.params import Mode
from specdec.rng import Lane, uniform
from specdec.sampling import sample


def verify(
    mode: Mode, p: Tensor, drafts: Sequence[Draft], seeds: Sequence[int], positions: Sequence[int]
) -> list[Verdict]:
    """Judge a batch of drafts; an empty draft gets one plain token.

    Args:
        mode: the rule. Off takes empty drafts only.
        p: target distributions [R, V], floating: for each draft its γ + 1 rows, one draft after the other.
        drafts: of any lengths.
        seeds: of the sessions [B].
        positions: absolute position of each first drafted token, which is the committed length [B].

    Raises:
        FieldInvalid, TokenOutOfRange: as `check_drafts`.
        InternalError: shapes disagree, or a row of p is not a distribution.
    """
    if not len(drafts) == len(seeds) == len(positions):
        raise InternalError(f"{len(drafts)} drafts, {len(seeds)} seeds, {len(positions)} positions")
    mass = _mass(p, rows=sum(len(draft.tokens) + 1 for draft in drafts))
    check_drafts(mode, drafts, p.shape[1])
    if not drafts:
        return []
    if mode is Mode.COUPLED:
        committed = coupled(p, [draft.tokens for draft in drafts], seeds, positions)
    else:
        committed = _by_ratio(mode, p, mass, drafts, (seeds, positions))
    return [
        Verdict(tokens, accepted=len(tokens) - 1, drafted=len(draft.tokens))
        for tokens, draft in zip(committed, drafts, strict=True)
    ]


def check_drafts(mode: Mode, drafts: Sequence[Draft], vocab_size: int) -> None:
    """Refuse what no drafter of this protocol sends; run it on a draft as it arrives to keep a bad one out of a batch.

    Raises:
        TokenOutOfRange: a draft token is not in the vocabulary.
        FieldInvalid: the mode takes no drafts; a token has no q̂; a q̂ is empty, not in ascending order of ids in the
            vocabulary, has a weight outside 1..65535, or does not hold its own token.
    """
    tokens = [token for draft in drafts for token in draft.tokens]
    if not all(0 <= token < vocab_size for token in tokens):
        raise TokenOutOfRange(f"a draft token is outside the vocabulary of {vocab_size}", "tokens")
    if mode is Mode.OFF and tokens:
        raise FieldInvalid("mode off takes no drafts", "mode")
    if mode in (Mode.REJECTION, Mode.BLOCK) and tokens:
        if any(len(draft.tokens) != len(draft.probs) for draft in drafts):
            raise FieldInvalid("each draft token needs its distribution", "probs")
        _check_probs([probs for draft in drafts for probs in draft.probs], tokens, vocab_size)


@dataclass(frozen=True, slots=True)
class _Window:
    """The drafts of a batch laid out for the ratio rules; see `specdec.acceptance` for shapes and padding."""

    first: Tensor
    """Row of p of each draft's first position, int64 [B]."""
    p_x: Tensor
    q_x: Tensor
    ids: Tensor
    """Supports [B, Γ+1, K]."""
    p_s: Tensor
    q_s: Tensor


def _by_ratio(
    mode: Mode, p: Tensor, mass: Tensor, drafts: Sequence[Draft], keys: tuple[Sequence[int], Sequence[int]]
) -> list[tuple[int, ...]]:
    """What rejection or block verification commits: kept drafts, then a token from the residual or from p."""
    seeds, positions = keys
    window = _window(p, mass, drafts)
    tau, scale = _kept(mode, window, _accept_noise(mode, window.p_x, drafts, seeds, positions))
    batch, last = torch.arange(len(drafts), device=p.device), window.first + tau
    law = residual(p[last].double() / mass[last, None], scale, window.ids[batch, tau], window.q_s[batch, tau])
    kept = tau.tolist()
    at = [position + count for position, count in zip(positions, kept, strict=True)]
    recovered = torch.tensor([count < len(draft.tokens) for count, draft in zip(kept, drafts, strict=True)])
    u = torch.where(recovered, uniform(seeds, at, Lane.RESIDUAL), uniform(seeds, at, Lane.BONUS))
    final = sample(law, u.to(p.device)).tolist()
    return [(*draft.tokens[:count], token) for draft, count, token in zip(drafts, kept, final, strict=True)]


def _kept(mode: Mode, window: _Window, u: Tensor) -> tuple[Tensor, Tensor]:
    """τ, int64 [B], and the scale of p in the residual [B]."""
    if mode is not Mode.BLOCK:
        return rejection(window.p_x, window.q_x, u), torch.ones_like(window.first, dtype=torch.float64)
    pi = block_pi(window.p_x, window.q_x)
    tau = block(block_h(pi, window.p_s, window.q_s), u)
    return tau, pi.gather(1, tau[:, None])[:, 0]


def _accept_noise(
    mode: Mode, like: Tensor, drafts: Sequence[Draft], seeds: Sequence[int], positions: Sequence[int]
) -> Tensor:
    """Uniforms in [0, 1) for the drafted positions, shaped as `like` [B, Γ], 0 in the padding.

    A block verdict looks at every position of the draft, also those it does not commit; the next round looks at them
    again, so the round's start is part of the key. Token rejection looks at none past the first it rejects.
    """
    owners = [b for b, draft in enumerate(drafts) for _ in draft.tokens]
    at = [positions[b] + step for b, draft in enumerate(drafts) for step in range(len(draft.tokens))]
    starts = [positions[b] for b in owners] if mode is Mode.BLOCK else None
    u = uniform([seeds[b] for b in owners], at, Lane.ACCEPT, like.device, starts)
    return _laid_out(u, _lengths(drafts, like.device), like.shape[1], fill=0.0)


def _window(p: Tensor, mass: Tensor, drafts: Sequence[Draft]) -> _Window:
    """Gather what the rules read of p and q̂, O(K) per drafted position."""
    lengths = _lengths(drafts, p.device)
    gamma = int(lengths.max())
    first = (lengths + 1).cumsum(0) - lengths - 1
    steps = torch.arange(gamma, device=p.device)
    rows = (first[:, None] + steps)[steps < lengths[:, None]]
    tokens = torch.tensor([token for draft in drafts for token in draft.tokens], dtype=torch.int64, device=p.device)
    ids, q = _supports([probs for draft in drafts for probs in draft.probs], p.device)
    q_x = ((ids == tokens[:, None]) * q).sum(-1)
    p_x = p[rows, tokens].double() / mass[rows]
    p_s = p[rows[:, None], ids].double() / mass[rows, None]
    return _Window(
        first=first,
        p_x=_laid_out(p_x, lengths, gamma, fill=0.0),
        q_x=_laid_out(q_x, lengths, gamma, fill=1.0),
        ids=_laid_out(ids, lengths, gamma + 1, fill=0),
        p_s=_laid_out(p_s, lengths, gamma + 1, fill=0.0),
        q_s=_laid_out(q, lengths, gamma + 1, fill=0.0),
    )


def _supports(probs: Sequence[SparseProbs], device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids, int64 [D, K], and q̂, float64 [D, K], of D supports; 0 past the end of each."""
    if not probs:
        none = torch.zeros(0, 0, dtype=torch.int64, device=device)
        return none, none.double()
    sizes = torch.tensor([len(row.ids) for row in probs], device=device)
    widest = int(sizes.max())
    ids, weights = (torch.cat(list(part)).to(device, torch.int64) for part in _columns(probs))
    q = _laid_out(weights, sizes, widest, fill=0).double()
    return _laid_out(ids, sizes, widest, fill=0), q / q.sum(-1, keepdim=True)


def _laid_out(flat: Tensor, lengths: Tensor, width: int, fill: float) -> Tensor:
    """Values one after the other [D, ...] as rows of `width` [B, width, ...], the rest filled."""
    rows = torch.full((len(lengths), width, *flat.shape[1:]), fill, dtype=flat.dtype, device=flat.device)
    rows[torch.arange(width, device=flat.device) < lengths[:, None]] = flat
    return rows


def _lengths(drafts: Sequence[Draft], device: torch.device) -> Tensor:
    return torch.tensor([len(draft.tokens) for draft in drafts], device=device)


def _columns(probs: Iterable[SparseProbs]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    rows = list(probs)
    return tuple(row.ids for row in rows), tuple(row.weights for row in rows)


def _mass(p: Tensor, rows: int) -> Tensor:
    """Σp of each row, float64 [R]: float32 rows sum to 1 only to seven digits."""
    if p.dim() != 2 or len(p) != rows or not p.is_floating_point():
        raise InternalError(f"p is {p.dtype} of shape {tuple(p.shape)}, its drafts need {rows} rows")
    mass = p.sum(-1, dtype=torch.float64)
    proper = (mass > 0) & mass.isfinite() & (p.amin(-1) >= 0)
    if not bool(proper.all()):
        raise InternalError(f"not a distribution in rows {(~proper).nonzero()[:, 0].tolist()} of p")
    return mass


def _check_probs(probs: Sequence[SparseProbs], tokens: Sequence[int], vocab_size: int) -> None:
    for row in probs:
        if not 0 < len(row.ids) == len(row.weights) or row.ids.is_floating_point() or row.weights.is_floating_point():
            raise FieldInvalid("a draft distribution needs as many integer weights as ids, and at least one", "probs")
    ids, weights = (torch.cat(part) for part in _columns(probs))
    slots = torch.arange(len(probs)).repeat_interleave(torch.tensor([len(row.ids) for row in probs]))
    if not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
        raise FieldInvalid(f"a draft distribution has an id outside the vocabulary of {vocab_size}", "probs")
    if not 1 <= int(weights.min()) <= int(weights.max()) <= MAX_WEIGHT:
        raise FieldInvalid(f"a draft distribution has a weight outside 1..{MAX_WEIGHT}", "probs")
    if bool(((ids[1:] <= ids[:-1]) & (slots[1:] == slots[:-1])).any()):
        raise FieldInvalid("the ids of a draft distribution are not ascending", "probs")
    held = slots[ids == torch.tensor(tokens)[slots]]
    if len(held) != len(tokens):
        raise FieldInvalid("a draft token is not in its own distribution", "probs")
