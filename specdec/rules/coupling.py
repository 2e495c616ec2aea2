"""Drafter-invariant coupling (Daliri, Musco, Suresh, arXiv 2408.07978): both sides draw with the same noise.

With eᵥ = -ln u(seed, position, v), the drafter proposes argmin eᵥ/qᵥ and the target emits argmin eᵥ/pᵥ. Both are exact
draws and often agree. The emitted token is a function of (seed, target) alone: the drafter cannot change it.

The target uses separate noise for each likely token, and one shared noise for all other tokens. The first of several
exponential arrivals of rates pᵥ is an exponential arrival of rate Σpᵥ, and it belongs to v with probability pᵥ/Σpᵥ. So
the draw is exact and its cost grows with the number of likely tokens. A draft token that is not likely never agrees.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from specdec.rules.padding import PaddedRaces
from specdec.rules.rng import (
    coordinates,
    exponential_on_device,
    exponential_on_host,
    rest_noise,
)
from specdec.sampling.distribution import sample
from specdec.sampling.transfer import to_device

LIKELY = 2.0**-14
"""Least probability of a token that races with its own noise: at most 16,384 tokens do. A q̂ has up to 64 ids, so this
threshold loses at most 64 · 2^-14 = 0.4 % of draft tokens."""

Draw = Callable[[Tensor, Tensor, Tensor, float], Tensor]
"""`draw` on the host. Arguments: p, the rows, int64 [N], their `coordinates`, the threshold of likely tokens."""


def choose(p: Tensor, ids: Tensor, seeds: Sequence[int], positions: Sequence[int]) -> Tensor:
    """The drafter's choice: the winner of the race between the given ids, int64 [N]: argmin eᵥ/pᵥ, the first of a tie.

    Args:
        p: probabilities of the ids, normalised or not [N, K]; an id of probability 0 never wins.
        ids: int64 [N, K].
        seeds: [N].
        positions: absolute position of the token to draw [N].
    """
    if not p.is_cpu:
        (words,) = to_device(p.device, coordinates(seeds, positions))
        winners, _ = race_on_device(p, ids, words)
        return winners
    rows, columns = (p > 0).nonzero(as_tuple=True)
    if torch.equal(rows, torch.arange(len(p))):
        return ids[rows, columns]  # every row has one possible id, as at temperature 0
    noise = exponential_on_host(coordinates(seeds, positions), rows, ids[rows, columns])
    arrival = torch.full(p.shape, math.inf, dtype=torch.float64)
    arrival[rows, columns] = noise / p[rows, columns]
    return ids.gather(-1, arrival.argmin(-1, keepdim=True))[:, 0]


def earliest(p: Tensor, ids: Tensor, seeds: Sequence[int], positions: Sequence[int], count: int) -> list[list[int]]:
    """The first `count` ids of each race on the host, in the order of arrival; the first is what `choose` returns."""
    words = coordinates(seeds, positions)
    rows, columns = (p > 0).nonzero(as_tuple=True)
    arrival = torch.full(p.shape, math.inf, dtype=torch.float64)
    arrival[rows, columns] = exponential_on_host(words, rows, ids[rows, columns]) / p[rows, columns]
    order = arrival.sort(dim=-1, stable=True).indices[:, :count]
    came = zip(ids.gather(-1, order).tolist(), arrival.gather(-1, order).tolist(), strict=True)
    return [[each for each, at in zip(*row, strict=True) if at < math.inf] for row in came]


def draw(p: Tensor, seeds: Sequence[int], positions: Sequence[int], rows: Sequence[int] | None = None) -> Tensor:
    """The target's own draw from each of N rows of p, int64 [N]: the winner of the race between its tokens.

    Args:
        p: normalised [R, V].
        seeds: [N].
        positions: absolute position of the token to draw [N].
        rows: which rows of p [N]; None is all of them.
    """
    words = coordinates(seeds, positions)
    if not p.is_cpu:
        noise = to_device(p.device, words, *rest_noise(words))
        return draw_on_device(p if rows is None else p[rows], *noise)
    which = torch.arange(len(p)) if rows is None else torch.tensor(rows)
    if p.dtype != torch.float32:  # which no model gives
        return draw_on_host(p, which, words, LIKELY)
    drawn: Tensor = torch.ops.specdec.draw(p, which, words, LIKELY)
    return drawn


def draw_on_host(p: Tensor, which: Tensor, words: Tensor, likely: float) -> Tensor:
    """NumPy implementation of `draw`; `words` are `specdec.rules.rng.coordinates` of rows `which`, int64 [4, N]."""
    p = p[which]
    races = p.numpy() >= likely
    flat = np.flatnonzero(races)
    rows, ids = np.divmod(flat, p.shape[1])
    noise = exponential_on_host(words, torch.from_numpy(rows), torch.from_numpy(ids)).numpy()
    arrivals = noise / p.numpy().ravel()[flat]
    rest = p.masked_fill(torch.from_numpy(races), 0.0)
    shared, u = rest_noise(words)
    rest_arrivals = (shared / rest.double().sum(-1)).tolist()
    drawn: list[int] = []
    for row, (start, stop) in enumerate(pairwise(rows.searchsorted(np.arange(len(p) + 1)).tolist())):
        best = start + int(arrivals[start:stop].argmin()) if start < stop else None
        if best is None or rest_arrivals[row] < arrivals[best]:
            drawn.append(int(sample(rest[row : row + 1], u[row : row + 1])))
        else:
            drawn.append(int(ids[best]))
    return torch.tensor(drawn, dtype=torch.int64)


# `host_draw.cpp` of the engine registers an implementation for the CPU, if it is available.
torch.library.define("specdec::draw", "(Tensor p, Tensor rows, Tensor words, float likely) -> Tensor")
torch.library.impl("specdec::draw", "CompositeExplicitAutograd", draw_on_host)


def draw_on_device(p: Tensor, words: Tensor, shared: Tensor, u: Tensor) -> Tensor:
    """`draw` on a device, without a device sync.

    Args:
        p: normalised [N, V].
        words: `specdec.rules.rng.coordinates` of the rows, int64 [4, N].
        shared, u: `specdec.rules.rng.rest_noise` of the rows, float64 [N].
    """
    likely = p.masked_fill(p < LIKELY, 0.0)
    rest = p - likely
    winners, arrivals = race_on_device(likely, torch.arange(p.shape[1], device=p.device).expand_as(p), words)
    rest_arrivals = shared / rest.sum(-1, dtype=torch.float64)
    return torch.where(rest_arrivals < arrivals, sample(rest, u), winners)


def race_on_device(p: Tensor, ids: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
    """`choose` on a device, without a device sync. Also return each winner's arrival time, float64 [N].

    Noise is computed for every id; ids of probability 0 arrive at infinity.

    Args:
        p: probabilities of the ids [N, K].
        ids: int64 [N, K].
        words: `specdec.rules.rng.coordinates` of the rows, int64 [4, N].
    """
    if triton_works(p.device):
        from specdec.rules.noise_kernel import race

        return race(p, ids, words)
    arrivals, places = (exponential_on_device(words, ids) / p).min(-1, keepdim=True)
    return ids.gather(-1, places)[:, 0], arrivals[:, 0]


def coupled_on_device(p: Tensor, races: PaddedRaces) -> tuple[Tensor, Tensor]:
    """Number of tokens kept of each draft and each verdict's last token, both int64 [B], without a device sync.

    Args:
        p: target distributions [R, V]; some rows may belong to drafts of other modes.
        races: the drafts, on the same device.
    """
    p = p if len(races.rows) == len(p) else p[races.rows]
    drawn = draw_on_device(p, races.words, races.rest_noise, races.rest_u)
    steps = torch.arange(races.tokens.shape[1] + 1, device=p.device)
    drawn = drawn[(races.first[:, None] + steps).clamp_max_(len(p) - 1)]
    same = (drawn[:, :-1] == races.tokens) & (steps[:-1] < races.lengths[:, None])
    tau = same.cumprod(1).sum(1)
    return tau, drawn.gather(1, tau[:, None])[:, 0]


def coupled_on_host(
    p: Tensor, drafts: Sequence[Sequence[int]], seeds: Sequence[int], positions: Sequence[int]
) -> list[tuple[int, ...]]:
    """The target's own draws for each draft, up to and including the first that differs, or one past the draft's end.

    The draws of each step are read before the next step is drawn, so that no noise is wasted.

    Args:
        p: target distributions [R, V], len(draft) + 1 rows per draft, one draft after the other.
        drafts: proposed tokens [B].
        seeds: of the sessions [B].
        positions: absolute position of each draft's first token [B].
    """
    emitted: list[tuple[int, ...]] = [()] * len(drafts)
    first = list(accumulate((len(draft) + 1 for draft in drafts), initial=0))
    agreeing, step = list(range(len(drafts))), 0
    while agreeing:
        rows = [first[b] + step for b in agreeing]
        drawn = draw(p, [seeds[b] for b in agreeing], [positions[b] + step for b in agreeing], rows)
        for b, token in zip(agreeing, drawn.tolist(), strict=True):
            emitted[b] += (token,)
        agreeing = [b for b in agreeing if step < len(drafts[b]) and emitted[b][step] == drafts[b][step]]
        step += 1
    return emitted


@cache
def triton_works(device: torch.device) -> bool:
    """Whether Triton is installed and finds the compilers it needs, tried once for each device."""
    if device.type != "cuda":
        return False
    try:
        from specdec.rules.noise_kernel import race

        ids = torch.zeros(1, 1, dtype=torch.int64, device=device)
        race(torch.ones(1, 1, device=device), ids, ids.new_zeros(4, 1))
    except Exception:  # noqa: BLE001 - Triton fails in many ways when something it needs is missing
        return False
    return True
