"""Draft tokens and the distribution each was drawn from: q is compressed to q̂ first, then the token is drawn from q̂.

q̂ has the k most likely ids of q, in ascending order, with integer weights in 1..65535. The most likely id has 65535,
and ids whose weight rounds to 0 are left out, so a one-hot row has one id. Because the weights are integers on both
sides, the verifier receives exactly the q̂ that was sampled.
"""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdec.errors import FieldInvalid, InternalError, NoDistribution
from specdec.rules.coupling import choose
from specdec.rules.draft import MAX_WEIGHT, SparseProbs
from specdec.rules.multidraft import Siblings
from specdec.rules.rng import Integers, Lane, uniform
from specdec.rules.speculation import Mode
from specdec.sampling.transfer import to_device, to_host

Proposal = tuple[list[int], list[SparseProbs]]
"""A draft token for each row and, in a mode that sends one, the q̂ of each."""


class _Call(NamedTuple):
    """Arguments of `propose`."""

    mode: Mode
    q: Tensor
    seeds: Sequence[int]
    positions: Sequence[int]
    k: int
    starts: Sequence[int] | None


def propose(
    mode: Mode,
    q: Tensor,
    seeds: Sequence[int],
    positions: Sequence[int],
    k: int,
    starts: Sequence[int] | None = None,
) -> Proposal:
    """Draw one draft token for each row of q [N, V].

    Args:
        mode: selects the draft rule; mode coupled sends no q̂, so its list is empty.
        q: the drafter's distributions, after all sampling parameters.
        seeds: of the sessions [N].
        positions: absolute position of each token [N].
        k: largest support of q̂; in mode coupled the number of candidates.
        starts: committed length at which each row's chain of drafts began [N], required in mode block. A block verdict
            reads drafts that it does not commit, so the chain that replaces them must use other random numbers.

    Raises:
        FieldInvalid: the mode takes no drafts, or mode block has no `starts`.
        InternalError: q is not a batch of distributions.
    """
    return _proposals([_Call(mode, q, seeds, positions, k, starts)])[0]


def propose_each(
    modes: Sequence[Mode], q: Tensor, seeds: Sequence[int], positions: Sequence[int], k: int, starts: Sequence[int]
) -> list[tuple[int, SparseProbs | None]]:
    """`propose` with a mode for each row; if q is on a device, one copy to the host serves all modes.

    Returns:
        The token of each row, and its q̂ in a mode that sends one.
    """
    groups = {mode: [row for row, each in enumerate(modes) if each is mode] for mode in dict.fromkeys(modes)}
    calls = []
    for mode, rows in groups.items():
        some, at, began = ([of[row] for row in rows] for of in (seeds, positions, starts))
        calls.append(_Call(mode, _rows(q, rows), some, at, k, began))
    made = [propose(*call) for call in calls] if q.is_cpu else _proposals(calls)
    drafts: dict[int, tuple[int, SparseProbs | None]] = {}
    for rows, (tokens, probs) in zip(groups.values(), made, strict=True):
        sent: Sequence[SparseProbs | None] = probs or [None] * len(tokens)
        drafts |= zip(rows, zip(tokens, sent, strict=True), strict=True)
    return [drafts[row] for row in range(len(modes))]


def propose_certain(modes: Sequence[Mode], best: Tensor, mass: Tensor) -> list[tuple[int, SparseProbs | None]]:
    """`propose_each` on the host for rows with one possible token, as at temperature 0, without q.

    Args:
        modes: mode of each row [N].
        best: the token of each row, int64 [N].
        mass: its probability, float64 [N]: 1, or NaN for a row that has no distribution.

    Raises:
        FieldInvalid: a mode takes no drafts.
        NoDistribution: a row has no distribution.
    """
    if Mode.OFF in modes:
        _check(Mode.OFF, None)
    _check_rows(mass.numpy()[:, None])
    weight = torch.tensor([MAX_WEIGHT])
    rows = zip(modes, best.tolist(), torch.split(best, 1), strict=True)
    return [(token, None if mode is Mode.COUPLED else SparseProbs(row, weight)) for mode, token, row in rows]


def propose_siblings(
    siblings: Siblings, q: Tensor, seeds: Sequence[int], positions: Sequence[int], k: int, places: Sequence[int]
) -> tuple[list[list[int]], list[SparseProbs]]:
    """Draw several drafts for the position after each row of q [N, V]. Return them in the order of the draw.

    One draft is drawn for each of `places`, the indices of its random number. Drafters whose drafts for one position
    are judged together must not share an index. Without replacement there are fewer drafts if q̂ has fewer ids.
    Deterministic siblings are the most likely tokens and have no q̂. The other arguments are as in `propose`.

    Raises:
        InternalError: q is not a batch of distributions.
    """
    mass, ids = _on_host(*to_host(*_likely(q, len(places) if siblings is Siblings.DETERMINISTIC else k)))
    weights = _weights(mass)
    if siblings is Siblings.DETERMINISTIC:
        order = (-weights).argsort(1, kind="stable")
        kept = np.take_along_axis(weights, order, 1) > 0
        rows = zip(np.take_along_axis(ids, order, 1), kept, strict=True)
        return [row[possible].tolist() for row, possible in rows], []
    families: list[list[int]] = [[] for _ in seeds]
    left = weights
    for place in places:
        tokens = _draw(ids, left, uniform(seeds, positions, Lane.DRAFT, indices=[place] * len(seeds)).numpy())
        for row in np.flatnonzero(left.any(1)).tolist():
            families[row].append(int(tokens[row]))
        if siblings is Siblings.WITHOUT_REPLACEMENT:
            left = np.where(ids == tokens[:, None], 0, left)
    return families, _packed(ids, weights)


def draw(ids: Tensor, weights: Tensor, u: Tensor) -> Tensor:
    """Draw an id for each row, int64 [N], by the integer inverse CDF: the first whose cumulative weight is over ⌊u·Σw⌋.

    Args:
        ids: int64 [N, K].
        weights: int64 [N, K]; an id of weight 0 is never drawn.
        u: float64 in [0, 1) [N].
    """
    return torch.from_numpy(_draw(ids.numpy(), weights.numpy(), u.numpy()))


def _draw(ids: Integers, weights: Integers, u: NDArray[np.float64]) -> Integers:
    cumulative = weights.cumsum(-1)
    total = cumulative[:, -1]
    target = np.minimum((u * total).astype(np.int64), total - 1)
    places = (cumulative > target[:, None]).argmax(-1)
    drawn: Integers = ids[np.arange(len(ids)), places]
    return drawn


def _check(mode: Mode, starts: Sequence[int] | None) -> None:
    if mode is Mode.OFF:
        raise FieldInvalid("mode off drafts nothing", "mode")
    if mode is Mode.BLOCK and starts is None:
        raise FieldInvalid("block mode needs the start of each chain", "starts")


def _proposals(calls: Sequence[_Call]) -> list[Proposal]:
    """`propose` of each call, with one copy to the host for all."""
    if not calls:
        return []
    numbers = iter(to_host(*chain.from_iterable(_of_device(call) for call in calls)))
    proposals = []
    for call in calls:
        mass, ids = _on_host(next(numbers), next(numbers))
        if call.mode is Mode.COUPLED:
            proposals.append((ids.tolist(), list[SparseProbs]()))
            continue
        weights, starts = _weights(mass), call.starts if call.mode is Mode.BLOCK else None
        u = uniform(call.seeds, call.positions, Lane.DRAFT, starts=starts)
        proposals.append((_draw(ids, weights, u.numpy()).tolist(), _packed(ids, weights)))
    return proposals


def _of_device(call: _Call) -> tuple[Tensor, Tensor]:
    """Compute on the device of q, without a device sync, what a call needs: the result of `_likely`.

    In mode coupled, the ids are the chosen ones alone [N].
    """
    _check(call.mode, call.starts)
    mass, ids = _likely(call.q, call.k)
    return mass, choose(mass, ids, call.seeds, call.positions) if call.mode is Mode.COUPLED else ids


def likely_by_torch(q: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k most likely ids of each row of q [N, V], ascending: their probabilities, float64, and the ids, [N, k]."""
    mass, ids = q.topk(k)
    ids, order = ids.sort(-1)
    return mass.gather(-1, order).double(), ids


# `host_draw.cpp` of the engine registers an implementation for the CPU, if it is available.
torch.library.define("specdec::likely", "(Tensor q, int k) -> (Tensor, Tensor)")
torch.library.impl("specdec::likely", "CompositeExplicitAutograd", likely_by_torch)


def _likely(q: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """`likely_by_torch` without a device sync, with at most V ids. Ids of probability 0 may come last in any order."""
    if q.dim() != 2 or k < 1:
        raise InternalError(f"q of shape {tuple(q.shape)} and a support of {k}")
    k = min(k, q.shape[-1])
    if q.dtype != torch.float32:  # which no model gives
        return likely_by_torch(q, k)
    mass, ids = torch.ops.specdec.likely(q, k)
    return mass, ids


def _on_host(mass: Tensor, ids: Tensor) -> tuple[NDArray[np.float64], Integers]:
    """Results of `_likely` on the host as arrays, checked."""
    _check_rows(mass.numpy())
    return mass.numpy(), ids.numpy()


def _check_rows(mass: NDArray[np.float64]) -> None:
    """Raise an error unless each row of q has a probability, given the largest ones of each [N, k]."""
    best = mass.max(-1)
    if not (best > 0.0).all():
        raise (NoDistribution if np.isnan(best).any() else InternalError)("a row of q is not a distribution")


def _weights(mass: NDArray[np.float64]) -> Integers:
    """Integer weights of the probabilities of each row [N, k]."""
    weights: Integers = np.rint(mass / mass.max(-1, keepdims=True) * MAX_WEIGHT).astype(np.int64)
    return weights


def _rows(q: Tensor, rows: Sequence[int]) -> Tensor:
    if len(rows) == len(q):
        return q
    (index,) = to_device(q.device, torch.tensor(rows))
    return q[index]


def _packed(ids: Integers, weights: Integers) -> list[SparseProbs]:
    """The q̂ of each row, without its ids of weight 0."""
    rows = zip(ids, weights, weights > 0, strict=True)
    return [SparseProbs(torch.from_numpy(own[kept]), torch.from_numpy(each[kept])) for own, each, kept in rows]
