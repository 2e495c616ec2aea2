"""Draft tokens and the distribution each was drawn from: q is compressed to q̂ first, then the token is drawn from q̂.

q̂ has the k most likely ids of q, in ascending order, with integer weights in 1..65535. The most likely id has 65535,
and ids whose weight rounds to 0 are left out, so a one-hot row has one id. Because the weights are integers on both
sides, the verifier receives exactly the q̂ that was sampled.
"""

from collections.abc import Sequence
from itertools import chain, islice

import torch
from torch import Tensor

from specdec.errors import FieldInvalid, InternalError, NoDistribution
from specdec.rules.coupling import choose
from specdec.rules.draft import MAX_WEIGHT, SparseProbs
from specdec.rules.multidraft import Siblings
from specdec.rules.rng import Lane, uniform
from specdec.rules.speculation import Mode
from specdec.sampling.transfer import to_device, to_host

Proposal = tuple[list[int], list[SparseProbs]]
"""A draft token for each row and, in a mode that sends one, the q̂ of each."""


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
    if q.is_cpu and q.dim() == 2 and bool((q.amax(-1) == 1.0).all()):
        _check(mode, starts)
        return _certain(mode, q.argmax(-1))
    return _read([_drawn(mode, q, seeds, positions, k, starts)])[0]


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
        calls.append((mode, _rows(q, rows), some, at, k, began))
    made = [propose(*call) for call in calls] if q.is_cpu else _read([_drawn(*call) for call in calls])
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
    ids, weights = _quantised(q, len(places) if siblings is Siblings.DETERMINISTIC else k)
    if siblings is Siblings.DETERMINISTIC:
        best = weights.argsort(dim=1, descending=True, stable=True)
        kept = weights.gather(1, best) > 0
        rows = zip(ids.gather(1, best), kept, strict=True)
        return [row[possible].tolist() for row, possible in rows], []
    families: list[list[int]] = [[] for _ in seeds]
    left = weights
    for place in places:
        tokens = draw(ids, left, uniform(seeds, positions, Lane.DRAFT, indices=[place] * len(seeds)))
        for row in (left.sum(1) > 0).nonzero()[:, 0].tolist():
            families[row].append(int(tokens[row]))
        if siblings is Siblings.WITHOUT_REPLACEMENT:
            left = left.masked_fill(ids == tokens[:, None], 0)
    return families, _packed(ids, weights)


def draw(ids: Tensor, weights: Tensor, u: Tensor) -> Tensor:
    """Draw an id for each row, int64 [N], by the integer inverse CDF: the first whose cumulative weight is over ⌊u·Σw⌋.

    Args:
        ids: int64 [N, K].
        weights: int64 [N, K]; an id of weight 0 is never drawn.
        u: float64 in [0, 1) [N].
    """
    cumulative = weights.cumsum(-1)
    total = cumulative[:, -1]
    target = torch.minimum((u * total).long(), total - 1)
    return ids.gather(-1, (cumulative > target[:, None]).byte().argmax(-1, keepdim=True))[:, 0]


def _check(mode: Mode, starts: Sequence[int] | None) -> None:
    if mode is Mode.OFF:
        raise FieldInvalid("mode off drafts nothing", "mode")
    if mode is Mode.BLOCK and starts is None:
        raise FieldInvalid("block mode needs the start of each chain", "starts")


def _certain(mode: Mode, only: Tensor) -> Proposal:
    """The proposal for one-hot rows, as at temperature 0; `only` is the one possible token of each row, int64 [N]."""
    weight = torch.tensor([MAX_WEIGHT])
    return only.tolist(), [] if mode is Mode.COUPLED else [SparseProbs(each[None], weight) for each in only]


def _drawn(
    mode: Mode, q: Tensor, seeds: Sequence[int], positions: Sequence[int], k: int, starts: Sequence[int] | None
) -> tuple[Tensor, ...]:
    """The highest probability of each row [N] and its drafted token, int64 [N]; in a mode that sends q̂, also ids and
    weights [N, K].

    The tensors stay on the device of q, without a device sync.
    """
    _check(mode, starts)
    best, mass, ids = _head(q, k)
    if mode is Mode.COUPLED:
        return best, choose(mass, ids, seeds, positions)
    weights = _weights(mass)
    (u,) = to_device(q.device, uniform(seeds, positions, Lane.DRAFT, starts=starts if mode is Mode.BLOCK else None))
    return best, draw(ids, weights, u), ids, weights


def _read(drawn: Sequence[tuple[Tensor, ...]]) -> list[Proposal]:
    """Copy the results of `_drawn` to the host, all in one copy."""
    numbers, proposals = iter(to_host(*chain(*drawn))), []
    for each in drawn:
        best, tokens, *law = islice(numbers, len(each))
        _check_best(best)
        proposals.append((tokens.tolist(), _packed(*law) if law else []))
    return proposals


def _rows(q: Tensor, rows: Sequence[int]) -> Tensor:
    if len(rows) == len(q):
        return q
    (index,) = to_device(q.device, torch.tensor(rows))
    return q[index]


def _packed(ids: Tensor, weights: Tensor) -> list[SparseProbs]:
    """The q̂ of each row, without its ids of weight 0."""
    kept = weights > 0
    sizes = kept.sum(-1).tolist()
    rows = zip(torch.split(ids[kept], sizes), torch.split(weights[kept], sizes), strict=True)
    return [SparseProbs(*row) for row in rows]


def _quantised(q: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k most likely ids of each row, ascending, and their weights, both int64 [N, k] on the host."""
    best, mass, ids = _head(q, k)
    best, ids, weights = to_host(best, ids, _weights(mass))
    _check_best(best)
    return ids, weights


def _weights(mass: Tensor) -> Tensor:
    """Integer weights, int64 [N, k], of probabilities [N, k]."""
    return (mass.double() / mass.amax(-1, keepdim=True) * MAX_WEIGHT).round().long()


def _head(q: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """The highest probability of each row, float64 [N]; its k most likely probabilities and ids, by id, [N, k]."""
    if q.dim() != 2 or k < 1:
        raise InternalError(f"q of shape {tuple(q.shape)} and a support of {k}")
    mass, ids = q.topk(min(k, q.shape[-1]))
    ids, order = ids.sort(-1)
    return mass.amax(-1).double(), mass.gather(-1, order), ids


def _check_best(best: Tensor) -> None:
    if not bool((best > 0).all()):
        raise (NoDistribution if bool(best.isnan().any()) else InternalError)("a row of q is not a distribution")
