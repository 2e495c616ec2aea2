"""Drafter-invariant coupling (Daliri, Musco, Suresh, arXiv 2408.07978): both sides draw with the same noise.

With eᵥ = -ln u(seed, position, v), the drafter proposes argmin eᵥ/qᵥ and the target emits argmin eᵥ/pᵥ. Each is an
exact draw, they agree often, and what is emitted is a function of (seed, target) alone, whatever the drafter does.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from specdec.rules.kernels import usable
from specdec.rules.rng import coordinates, exponential, exponential_there
from specdec.rules.transfer import moved
from specdec.rules.window import Races


def choose(p: Tensor, ids: Tensor, seeds: Sequence[int], positions: Sequence[int]) -> Tensor:
    """The winner of each row's exponential race, int64 [N]: argmin over v of eᵥ/pᵥ, the first of several.

    Args:
        p: probabilities of the ids, normalised or not [N, K]; an id of probability 0 does not run.
        ids: int64 [N, K].
        seeds: [N].
        positions: absolute position of the token to draw [N].
    """
    if not p.is_cpu:
        (words,) = moved(p.device, torch.from_numpy(coordinates(seeds, positions)))
        return race(p, ids, words)
    rows, columns = (p > 0).nonzero(as_tuple=True)
    if torch.equal(rows, torch.arange(len(p))):
        return ids[rows, columns]  # everyone runs alone, as at temperature 0
    noise = exponential(seeds, positions, rows, ids[rows, columns])
    arrival = torch.full(p.shape, math.inf, dtype=torch.float64)
    arrival[rows, columns] = noise / p[rows, columns]
    return ids.gather(-1, arrival.argmin(-1, keepdim=True))[:, 0]


def agreed(p: Tensor, races: Races) -> tuple[Tensor, Tensor]:
    """`coupled` without a look at any number: drafts kept and the last token of each draft, both int64 [B].

    Args:
        p: target distributions [R, V], those of other modes among them.
        races: on the same device.
    """
    p = p if len(races.rows) == len(p) else p[races.rows]
    drawn = race(p, torch.arange(p.shape[1], device=p.device).expand_as(p), races.words)
    steps = torch.arange(races.tokens.shape[1] + 1, device=p.device)
    drawn = drawn[(races.first[:, None] + steps).clamp_max_(len(p) - 1)]
    same = (drawn[:, :-1] == races.tokens) & (steps[:-1] < races.lengths[:, None])
    tau = same.cumprod(1).sum(1)
    return tau, drawn.gather(1, tau[:, None])[:, 0]


def race(p: Tensor, ids: Tensor, words: Tensor) -> Tensor:
    """`choose` for what lies on another device: everyone is given noise, and nobody asks who needs it.

    Args:
        p: [N, K]
        ids: int64 [N, K]
        words: `specdec.rules.rng.coordinates` of the rows, int64 [4, N].
    """
    if usable(p.device):
        from specdec.rules.noise_kernel import race as in_one_kernel

        return in_one_kernel(p, ids, words)
    arrival = exponential_there(words, ids) / p
    return ids.gather(-1, arrival.argmin(-1, keepdim=True))[:, 0]


def coupled(
    p: Tensor, drafts: Sequence[Sequence[int]], seeds: Sequence[int], positions: Sequence[int]
) -> list[tuple[int, ...]]:
    """The target's own draws for each draft, up to and with the first that differs from it, or one past its end.

    For the host: it looks at the draws of one step before it makes those of the next.

    Args:
        p: target distributions [R, V], len(draft) + 1 rows per draft, one draft after the other.
        drafts: proposed tokens.
        seeds: of the sessions [B].
        positions: absolute position of each first token [B].
    """
    ids = torch.arange(p.shape[1], device=p.device)
    emitted: list[tuple[int, ...]] = [()] * len(drafts)
    first = [0]
    for draft in drafts:
        first.append(first[-1] + len(draft) + 1)
    agreeing, step = list(range(len(drafts))), 0
    while agreeing:
        rows = p[[first[b] + step for b in agreeing]]
        chosen = choose(
            rows, ids.expand_as(rows), [seeds[b] for b in agreeing], [positions[b] + step for b in agreeing]
        )
        for b, token in zip(agreeing, chosen.tolist(), strict=True):
            emitted[b] += (token,)
        agreeing = [b for b in agreeing if step < len(drafts[b]) and emitted[b][step] == drafts[b][step]]
        step += 1
    return emitted
