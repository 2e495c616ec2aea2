"""Verdicts of one round: judge a ragged batch of drafts by the rule of its mode.

Every draw at absolute position t uses (seed, t, purpose), so a verdict depends only on its own rows of p.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, islice

import torch
from torch import Tensor

from specdec.errors import FieldInvalid, InternalError
from specdec.rules.acceptance import judge, judge_on_host, judged_overlaps, overlaps, overlaps_on_host, sample_rest
from specdec.rules.checks import check_drafts, masses, proper_counts
from specdec.rules.coupling import coupled_on_device, coupled_on_host
from specdec.rules.draft import Draft, JoinedProbs, Verdict
from specdec.rules.padding import DraftBatch, PaddedDrafts, PaddedRaces, flatten_drafts, pad_drafts, pad_races
from specdec.rules.prefix import common_length
from specdec.rules.rng import Lane, final_uniform, uniform
from specdec.rules.speculation import Mode
from specdec.sampling.distribution import argmax
from specdec.sampling.transfer import to_device, to_host

_RACED = (Mode.COUPLED, Mode.OFF)
"""Modes whose tokens are the winners of exponential races."""

Committed = list[tuple[int, ...]]
"""The tokens that each verdict commits."""


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
        mode: the rule. Mode off takes empty drafts only and draws as coupled does, so one seed gives the same tokens.
        p: target distributions [R, V], floating: γ + 1 rows of each draft, one draft after the other.
        drafts: drafts of any length [B].
        seeds: seed of each session [B].
        positions: absolute position of each first drafted token, which is the committed length [B].
        lenience: ℓ in (0, 1] of each draft [B], for mode rejection; None is 1, exact. At temperature 0 lenience has
            no effect here: `specdec.rules.lenience` applies it to p beforehand.

    Raises:
        FieldInvalid, TokenOutOfRange: `check_drafts` refuses a draft, or a lenience is out of range or not allowed by
            the mode.
        InternalError: shapes disagree, or the first row of a draft is not a distribution. If a later row is not, the
            verdict commits only the drafts accepted before that row; a row after a rejected draft changes nothing.
    """
    batch = DraftBatch(mode, drafts, seeds, positions, lenience, _first_rows(drafts))
    return _verify_on_host(p, batch) if p.is_cpu or not drafts else _verify_on_device(p, [batch])[0]


def verify_each(
    modes: Sequence[Mode],
    p: Tensor,
    drafts: Sequence[Draft],
    seeds: Sequence[int],
    positions: Sequence[int],
    lenience: Sequence[float] | None = None,
) -> list[Verdict]:
    """`verify` with a mode for each draft [B]; if p is on a device, one copy to the host serves all modes."""
    if len(set(modes)) == 1:
        return verify(modes[0], p, drafts, seeds, positions, lenience)
    whole = DraftBatch(Mode.OFF, drafts, seeds, positions, lenience, _first_rows(drafts))
    groups = {mode: [b for b, each in enumerate(modes) if each is mode] for mode in dict.fromkeys(modes)}
    batches = [whole.part(mode, members) for mode, members in groups.items()]
    if p.is_cpu:
        verdicts = [
            verify(each.mode, p[each.rows()], each.drafts, each.seeds, each.positions, each.lenience)
            for each in batches
        ]
    else:
        verdicts = _verify_on_device(p, batches)
    of = dict(zip(chain(*groups.values()), chain(*verdicts), strict=True))
    return [of[b] for b in range(len(drafts))]


def verify_certain(
    modes: Sequence[Mode], best: Tensor, mass: Tensor, drafts: Sequence[Draft], vocab_size: int
) -> list[Verdict]:
    """`verify_each` on the host, for rows of p with one possible token, as at temperature 0.

    Args:
        modes: mode of each draft [B]; all modes commit the same tokens here.
        best: the one possible token of each row of p, int64 [R].
        mass: sum of each row of p, NaN if it is not a distribution, float64 [R].
        drafts: drafts of any length [B].
        vocab_size: number of ids in a row of p.

    Raises:
        FieldInvalid, TokenOutOfRange, NoDistribution, InternalError: as in `verify`.
    """
    for mode in set(modes):
        check_drafts(mode, [draft for draft, each in zip(drafts, modes, strict=True) if each is mode], vocab_size)
    first = _first_rows(drafts)
    return _verdicts(mass, first, drafts, _certain(best.tolist(), first, drafts))


def _first_rows(drafts: Sequence[Draft]) -> list[int]:
    """Row of p of each draft's first position."""
    return list(accumulate((len(draft.tokens) + 1 for draft in drafts[:-1]), initial=0))


def _check_batch(batch: DraftBatch, vocab_size: int) -> JoinedProbs | None:
    """Check the arguments of `verify` except p. Return the result of `check_drafts`."""
    lenience, drafts = batch.lenience, len(batch.drafts)
    if not drafts == len(batch.seeds) == len(batch.positions):
        raise InternalError(f"{drafts} drafts, {len(batch.seeds)} seeds, {len(batch.positions)} positions")
    if lenience is not None:
        if len(lenience) != drafts:
            raise InternalError(f"{drafts} drafts, {len(lenience)} leniences")
        if not all(0.0 < ell <= 1.0 for ell in lenience):
            raise FieldInvalid("lenience must be in (0, 1]", "speculation.lenience")
        if batch.mode is not Mode.REJECTION and any(ell != 1.0 for ell in lenience):
            raise FieldInvalid(f"mode {batch.mode} allows no lenience", "speculation.lenience")
    return check_drafts(batch.mode, batch.drafts, vocab_size)


def _verify_on_host(p: Tensor, batch: DraftBatch) -> list[Verdict]:
    """Verify on the host, where reading a value is free, so values are read early to skip work."""
    drafts = batch.drafts
    mass = masses(p, rows=sum(len(draft.tokens) + 1 for draft in drafts))
    laws = _check_batch(batch, p.shape[1])
    if not drafts:
        return []
    if batch.mode not in _RACED:
        flat = flatten_drafts(batch, accept_noise(batch), _last_noise(batch), laws)
        tau, last = judge_on_host(batch.mode, p, mass, flat)
        kept = tau.tolist()
        committed = _with_last(drafts, kept, last.tolist())
        if batch.mode is Mode.REJECTION:
            return _verdicts(mass, batch.first, drafts, committed, overlaps_on_host(p, mass, flat, kept))
    elif all(torch.equal(p[part].amax(-1).double(), mass[part]) for part in (slice(1), slice(1, None))):
        committed = _certain(argmax(p).tolist(), batch.first, drafts)
    else:
        committed = coupled_on_host(p, [draft.tokens for draft in drafts], batch.seeds, batch.positions)
    return _verdicts(mass, batch.first, drafts, committed)


def _certain(only: Sequence[int], first: Sequence[int], drafts: Sequence[Draft]) -> Committed:
    """Tokens that every mode commits when each row of p has one possible token, `only` [R], as at temperature 0."""
    committed = []
    for draft, start in zip(drafts, first, strict=True):
        rows = only[start : start + len(draft.tokens) + 1]
        committed.append(tuple(rows[: common_length(draft.tokens, rows) + 1]))
    return committed


def accept_noise(batch: DraftBatch) -> Tensor:
    """Uniforms in [0, 1) for the drafted positions, draft after draft, float64 [Σγ].

    A block verdict reads every position of the draft, including positions that it does not commit. The next round reads
    these again, so the round's start is part of the key. Token rejection reads no position after the first rejection.
    """
    steps = batch.steps()
    starts = [batch.positions[b] for b, _ in steps] if batch.mode is Mode.BLOCK else None
    return uniform(*batch.keys(steps), Lane.ACCEPT, starts=starts)


def _verify_on_device(p: Tensor, batches: Sequence[DraftBatch]) -> list[list[Verdict]]:
    """Verify on a device with a single sync, at the end, because each sync waits for all earlier work.

    One copy to the device holds the drafts and a uniform for every possible last token. One copy back holds τ, the last
    token of each draft, and the row sums that show whether p was a distribution.
    """
    mass = masses(p, rows=sum(len(draft.tokens) + 1 for batch in batches for draft in batch.drafts))
    laws = [_check_batch(batch, p.shape[1]) for batch in batches]
    results: list[Tensor] = []
    for batch, padded in zip(batches, _copied(p.device, batches, laws), strict=True):
        if isinstance(padded, PaddedRaces):
            results += coupled_on_device(p, padded)
        else:
            tau, rest = judge(batch.mode, p, mass, padded)
            results += tau, sample_rest(p, mass, rest, padded.last.gather(1, tau[:, None])[:, 0])
        if batch.mode is Mode.REJECTION and isinstance(padded, PaddedDrafts):
            results.append(overlaps(p, mass, padded))
    mass, *found = to_host(mass, *results)
    numbers = iter(found)
    return [_read(mass, batch, numbers) for batch in batches]


def _read(mass: Tensor, batch: DraftBatch, numbers: Iterator[Tensor]) -> list[Verdict]:
    """Build the verdicts on a batch from the next results on the host: τ, the last tokens, and any overlaps."""
    kept, last = next(numbers).tolist(), next(numbers).tolist()
    committed, found = _with_last(batch.drafts, kept, last), None
    if batch.mode is Mode.REJECTION:
        lines = zip(next(numbers).tolist(), batch.drafts, kept, strict=True)
        found = [judged_overlaps(line[: len(draft.tokens)], count) for line, draft, count in lines]
    return _verdicts(mass, batch.first, batch.drafts, committed, found)


def _copied(
    device: torch.device, batches: Sequence[DraftBatch], laws: Sequence[JoinedProbs | None]
) -> list[PaddedDrafts | PaddedRaces]:
    """Copy the batches to the device in one copy, each in the layout that its rule reads."""
    padded = [
        pad_races(each)
        if each.mode in _RACED
        else pad_drafts(flatten_drafts(each, accept_noise(each), _last_noise(each), joined))
        for each, joined in zip(batches, laws, strict=True)
    ]
    parts = iter(to_device(device, *chain(*padded)))
    return [type(each)(*islice(parts, len(each))) for each in padded]


def _last_noise(batch: DraftBatch) -> Tensor:
    """The uniform of the last token for each number of kept drafts; after a whole draft, for a bonus or plain token."""
    steps = batch.steps(extra=1)
    return final_uniform(*batch.keys(steps), [step < len(batch.drafts[b].tokens) for b, step in steps])


def _with_last(drafts: Sequence[Draft], kept: Sequence[int], last: Sequence[int]) -> Committed:
    """The first `kept` tokens of each draft and its last token."""
    return [(*draft.tokens[:count], token) for draft, count, token in zip(drafts, kept, last, strict=True)]


def _verdicts(
    mass: Tensor,
    first: Sequence[int],
    drafts: Sequence[Draft],
    committed: Committed,
    overlaps: Sequence[tuple[float, ...]] | None = None,
) -> list[Verdict]:
    """Build the verdicts; a token from a row that is not a distribution is dropped, with all tokens after it."""
    counts = proper_counts(mass, first, [len(tokens) for tokens in committed])
    found = [()] * len(drafts) if overlaps is None else overlaps
    return [
        Verdict(tokens[:count], accepted=min(count, len(tokens) - 1), drafted=len(draft.tokens), overlaps=each)
        for tokens, count, draft, each in zip(committed, counts, drafts, found, strict=True)
    ]
