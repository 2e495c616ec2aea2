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
    drafts: dict[int, tuple[int, SparseProbs | None]] = {}
    for rows, (tokens, probs) in zip(groups.values(), _proposals(calls), strict=True):
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
    _check_best(mass)
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
    best, *likely = to_host(*_likely(q, len(places) if siblings is Siblings.DETERMINISTIC else k))
    _check_best(best)
    ids, weights = _quantised(*likely)
    if siblings is Siblings.DETERMINISTIC:
        order = (-weights).argsort(1, kind="stable")
        kept = np.take_along_axis(weights, order, 1) > 0
        rows = zip(np.take_along_axis(ids, order, 1), kept, strict=True)
        return [row[possible].tolist() for row, possible in rows], []
    families: list[list[int]] = [[] for _ in seeds]
    left = weights
    for place in places:
        tokens = _draw(ids, left, uniform(seeds, positions, Lane.DRAFT, indices=[place] * len(seeds)).numpy())
        for row in left.any(1).nonzero()[0].tolist():
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
    numbers = iter(to_host(*chain.from_iterable(_of_device(call) for call in calls)))
    proposals = []
    for call in calls:
        _check_best(next(numbers))
        if call.mode is Mode.COUPLED:
            proposals.append((next(numbers).tolist(), list[SparseProbs]()))
            continue
        ids, weights = _quantised(next(numbers), next(numbers))
        starts = call.starts if call.mode is Mode.BLOCK else None
        u = uniform(call.seeds, call.positions, Lane.DRAFT, starts=starts)
        proposals.append((_draw(ids, weights, u.numpy()).tolist(), _packed(ids, weights)))
    return proposals


def _of_device(call: _Call) -> tuple[Tensor, ...]:
    """What a call needs from the device of q, without a device sync: as `_likely`, or the tokens of mode coupled."""
    _check(call.mode, call.starts)
    best, mass, ids = _likely(call.q, call.k)
    if call.mode is not Mode.COUPLED:
        return best, mass, ids
    ids, order = ids.sort(-1)
    return best, choose(mass.gather(-1, order), ids, call.seeds, call.positions)


def _rows(q: Tensor, rows: Sequence[int]) -> Tensor:
    if len(rows) == len(q):
        return q
    (index,) = to_device(q.device, torch.tensor(rows))
    return q[index]


def _packed(ids: Integers, weights: Integers) -> list[SparseProbs]:
    """The q̂ of each row, without its ids of weight 0."""
    rows = zip(ids, weights, weights > 0, strict=True)
    return [SparseProbs(torch.from_numpy(own[kept]), torch.from_numpy(each[kept])) for own, each, kept in rows]


def _quantised(mass: Tensor, ids: Tensor) -> tuple[Integers, Integers]:
    """The ids of each row, ascending, and the integer weights of their probabilities; all [N, k] on the host."""
    order = ids.numpy().argsort(-1)
    ascending, law = np.take_along_axis(ids.numpy(), order, -1), np.take_along_axis(mass.numpy(), order, -1)
    return ascending, np.rint(law / law.max(-1, keepdims=True) * MAX_WEIGHT).astype(np.int64)


def _likely(q: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """The highest probability of each row, float64 [N]; its k most likely probabilities, float64, and ids, [N, k]."""
    if q.dim() != 2 or k < 1:
        raise InternalError(f"q of shape {tuple(q.shape)} and a support of {k}")
    mass, ids = q.topk(min(k, q.shape[-1]))
    mass = mass.double()
    return mass.amax(-1), mass, ids


def _check_best(best: Tensor) -> None:
    if not bool((best > 0).all()):
        raise (NoDistribution if bool(best.isnan().any()) else InternalError)("a row of q is not a distribution")
