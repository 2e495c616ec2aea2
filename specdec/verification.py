"""One round's verdicts: what the target makes of a ragged batch of drafts, by the mode's rule.

Every draw at absolute position t uses (seed, t, purpose), so a verdict depends on nothing but its own rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specdec.acceptance import block, block_h, block_pi, rejection, residual
from specdec.coupling import coupled
from specdec.draft import Draft, Verdict
from specdec.errors import FieldInvalid, InternalError, TokenOutOfRange
from specdec.layout import check_probs, laid_out, masses, supports
from specdec.params import Mode
from specdec.rng import Lane, final_uniform, uniform
from specdec.sampling import sample


def verify(
    mode: Mode,
    p: Tensor,
    drafts: Sequence[Draft],
    seeds: Sequence[int],
    positions: Sequence[int],
    lenience: Sequence[float] | None = None,
) -> list[Verdict]:
    """Judge a batch of drafts; an empty draft gets one plain token.

    Args:
        mode: the rule. Off takes empty drafts only, and draws as coupled does: one seed, the same tokens.
        p: target distributions [R, V], floating: for each draft its γ + 1 rows, one draft after the other.
        drafts: of any lengths.
        seeds: of the sessions [B].
        positions: absolute position of each first drafted token, which is the committed length [B].
        lenience: ℓ in (0, 1] of each draft [B], for mode rejection; None is 1, exact. Rows of temperature 0 take theirs
            from `specdec.lenience` before.

    Raises:
        FieldInvalid, TokenOutOfRange: as `check_drafts`; FieldInvalid also for a lenience that cannot be.
        InternalError: shapes disagree, or a row of p is not a distribution.
    """
    if not len(drafts) == len(seeds) == len(positions):
        raise InternalError(f"{len(drafts)} drafts, {len(seeds)} seeds, {len(positions)} positions")
    _check_lenience(mode, lenience, len(drafts))
    mass = masses(p, rows=sum(len(draft.tokens) + 1 for draft in drafts))
    check_drafts(mode, drafts, p.shape[1])
    if not drafts:
        return []
    best = p.max(-1)
    if torch.equal(best.values.double(), mass):
        committed = _certain(best.indices.tolist(), drafts)
    elif mode in (Mode.COUPLED, Mode.OFF):
        committed = coupled(p, [draft.tokens for draft in drafts], seeds, positions)
    else:
        committed = _by_ratio(mode, p, mass, drafts, (seeds, positions), lenience)
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
        check_probs([probs for draft in drafts for probs in draft.probs], range(len(tokens)), tokens, vocab_size)


def _check_lenience(mode: Mode, lenience: Sequence[float] | None, drafts: int) -> None:
    if lenience is None:
        return
    if len(lenience) != drafts:
        raise InternalError(f"{drafts} drafts, {len(lenience)} leniences")
    if not all(0.0 < ell <= 1.0 for ell in lenience):
        raise FieldInvalid("lenience must be in (0, 1]", "speculation.lenience")
    if mode is not Mode.REJECTION and any(ell != 1.0 for ell in lenience):
        raise FieldInvalid(f"mode {mode} allows no lenience", "speculation.lenience")


def _certain(only: Sequence[int], drafts: Sequence[Draft]) -> list[tuple[int, ...]]:
    """What every mode commits where p leaves no choice, as at temperature 0: no number is needed to know it.

    Args:
        only: the one possible token of each row of p [R].
        drafts: as in `verify`.
    """
    committed, first = [], 0
    for draft in drafts:
        rows = only[first : first + len(draft.tokens) + 1]
        kept = next((step for step, token in enumerate(draft.tokens) if token != rows[step]), len(draft.tokens))
        committed.append(tuple(rows[: kept + 1]))
        first += len(rows)
    return committed


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
    mode: Mode,
    p: Tensor,
    mass: Tensor,
    drafts: Sequence[Draft],
    keys: tuple[Sequence[int], Sequence[int]],
    lenience: Sequence[float] | None,
) -> list[tuple[int, ...]]:
    """What rejection or block verification commits: kept drafts, then a token from the residual or from p."""
    seeds, positions = keys
    kept, law = _judged(mode, p, mass, drafts, keys, lenience)
    at = [position + count for position, count in zip(positions, kept, strict=True)]
    recovered = [count < len(draft.tokens) for count, draft in zip(kept, drafts, strict=True)]
    final = sample(law, final_uniform(seeds, at, recovered).to(p.device)).tolist()
    return [(*draft.tokens[:count], token) for draft, count, token in zip(drafts, kept, final, strict=True)]


def _judged(
    mode: Mode,
    p: Tensor,
    mass: Tensor,
    drafts: Sequence[Draft],
    keys: tuple[Sequence[int], Sequence[int]],
    lenience: Sequence[float] | None,
) -> tuple[list[int], Tensor]:
    """τ of each draft, and what its last token is drawn from [B, V]."""
    if not any(draft.tokens for draft in drafts):
        return [0] * len(drafts), p.double() / mass[:, None]
    window = _window(p, mass, drafts)
    tau, scale = _kept(mode, window, _accept_noise(mode, window.p_x, drafts, *keys), lenience)
    batch, last = torch.arange(len(drafts), device=p.device), window.first + tau
    law = residual(p[last].double() / mass[last, None], scale, window.ids[batch, tau], window.q_s[batch, tau])
    return tau.tolist(), law


def _kept(mode: Mode, window: _Window, u: Tensor, lenience: Sequence[float] | None) -> tuple[Tensor, Tensor]:
    """τ, int64 [B], and the scale of p in the residual [B]."""
    if mode is not Mode.BLOCK:
        ell = None if lenience is None else torch.tensor(lenience, dtype=torch.float64, device=u.device)
        return rejection(window.p_x, window.q_x, u, ell), torch.ones_like(window.first, dtype=torch.float64)
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
    return laid_out(u, _lengths(drafts, like.device), like.shape[1], fill=0.0)


def _window(p: Tensor, mass: Tensor, drafts: Sequence[Draft]) -> _Window:
    """Gather what the rules read of p and q̂, O(K) per drafted position."""
    lengths = _lengths(drafts, p.device)
    gamma = int(lengths.max())
    first = (lengths + 1).cumsum(0) - lengths - 1
    steps = torch.arange(gamma, device=p.device)
    rows = (first[:, None] + steps)[steps < lengths[:, None]]
    tokens = torch.tensor([token for draft in drafts for token in draft.tokens], dtype=torch.int64, device=p.device)
    ids, q = supports([probs for draft in drafts for probs in draft.probs], p.device)
    q_x = ((ids == tokens[:, None]) * q).sum(-1)
    p_x = p[rows, tokens].double() / mass[rows]
    p_s = p[rows[:, None], ids].double() / mass[rows, None]
    return _Window(
        first=first,
        p_x=laid_out(p_x, lengths, gamma, fill=0.0),
        q_x=laid_out(q_x, lengths, gamma, fill=1.0),
        ids=laid_out(ids, lengths, gamma + 1, fill=0),
        p_s=laid_out(p_s, lengths, gamma + 1, fill=0.0),
        q_s=laid_out(q, lengths, gamma + 1, fill=0.0),
    )


def _lengths(drafts: Sequence[Draft], device: torch.device) -> Tensor:
    return torch.tensor([len(draft.tokens) for draft in drafts], device=device)
