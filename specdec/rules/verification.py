"""One round's verdicts: what the target makes of a ragged batch of drafts, by the mode's rule.

Every draw at absolute position t uses (seed, t, purpose), so a verdict depends on nothing but its own rows.
"""

from collections.abc import Sequence
from itertools import accumulate, chain, islice

import torch
from torch import Tensor

from specdec.errors import FieldInvalid, InternalError, TokenOutOfRange
from specdec.rules.acceptance import judged
from specdec.rules.coupling import agreed, coupled
from specdec.rules.draft import Draft, Verdict
from specdec.rules.layout import check_masses, check_probs, masses
from specdec.rules.params import Mode
from specdec.rules.rng import Lane, final_uniform, uniform
from specdec.rules.sampling import sample
from specdec.rules.transfer import fetched, moved
from specdec.rules.window import Batch, Races, Window, races, window

_RACED = (Mode.COUPLED, Mode.OFF)

Committed = list[tuple[int, ...]]
"""The tokens of each verdict."""


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
            from `specdec.rules.lenience` before.

    Raises:
        FieldInvalid, TokenOutOfRange: as `check_drafts`; FieldInvalid also for a lenience that cannot be.
        InternalError: shapes disagree, or a row of p is not a distribution.
    """
    batch = Batch(mode, drafts, seeds, positions, lenience, _starts(drafts))
    return _here(p, batch) if p.is_cpu or not drafts else _there(p, [batch])[0]


def verify_each(
    modes: Sequence[Mode],
    p: Tensor,
    drafts: Sequence[Draft],
    seeds: Sequence[int],
    positions: Sequence[int],
    lenience: Sequence[float] | None = None,
) -> list[Verdict]:
    """`verify` where each draft has a mode of its own [B]; on another device than the host in one copy for all."""
    if len(set(modes)) == 1:
        return verify(modes[0], p, drafts, seeds, positions, lenience)
    whole = Batch(Mode.OFF, drafts, seeds, positions, lenience, _starts(drafts))
    groups = {mode: [b for b, each in enumerate(modes) if each is mode] for mode in dict.fromkeys(modes)}
    batches = [whole.part(mode, members) for mode, members in groups.items()]
    if p.is_cpu:
        verdicts = [
            verify(each.mode, p[each.rows()], each.drafts, each.seeds, each.positions, each.lenience)
            for each in batches
        ]
    else:
        verdicts = _there(p, batches)
    of = dict(zip(chain(*groups.values()), chain(*verdicts), strict=True))
    return [of[b] for b in range(len(drafts))]


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


def _checked(batch: Batch, vocab_size: int) -> None:
    """Refuse what `verify` refuses, p aside."""
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
    check_drafts(batch.mode, batch.drafts, vocab_size)


def _starts(drafts: Sequence[Draft]) -> list[int]:
    """Row of p of each draft's first position."""
    return list(accumulate((len(draft.tokens) + 1 for draft in drafts[:-1]), initial=0))


def _here(p: Tensor, batch: Batch) -> list[Verdict]:
    """On the host a look at a number is free, so what a number shows to be needless is left out."""
    drafts = batch.drafts
    mass = masses(p, rows=sum(len(draft.tokens) + 1 for draft in drafts))
    _checked(batch, p.shape[1])
    check_masses(mass)
    if not drafts:
        return []
    best = p.max(-1)
    if torch.equal(best.values.double(), mass):
        return _verdicts(drafts, _certain(best.indices.tolist(), drafts))
    if batch.mode in _RACED:
        return _verdicts(drafts, coupled(p, [draft.tokens for draft in drafts], batch.seeds, batch.positions))
    return _verdicts(drafts, _by_ratio(p, mass, batch))


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


def _by_ratio(p: Tensor, mass: Tensor, batch: Batch) -> Committed:
    """What rejection or block verification commits: kept drafts, then a token from the residual or from p."""
    drafts, kept, law = batch.drafts, [0] * len(batch.drafts), None
    if any(draft.tokens for draft in drafts):
        tau, law = judged(batch.mode, p, mass, window(batch, _accept_noise(batch)))
        kept = tau.tolist()
    at = [position + count for position, count in zip(batch.positions, kept, strict=True)]
    recovered = [count < len(draft.tokens) for count, draft in zip(kept, drafts, strict=True)]
    u = final_uniform(batch.seeds, at, recovered)
    final = sample(p.double() / mass[:, None] if law is None else law, u).tolist()
    return _ended(drafts, kept, final)


def _accept_noise(batch: Batch) -> Tensor:
    """Uniforms in [0, 1) for the drafted positions, one draft's after the other's.

    A block verdict looks at every position of the draft, also those it does not commit; the next round looks at them
    again, so the round's start is part of the key. Token rejection looks at none past the first it rejects.
    """
    places = batch.places()
    starts = [batch.positions[b] for b, _ in places] if batch.mode is Mode.BLOCK else None
    return uniform(*batch.keys(places), Lane.ACCEPT, starts=starts)


def _there(p: Tensor, batches: Sequence[Batch]) -> list[list[Verdict]]:
    """On another device a look waits for everything before it, so there is one, at the end.

    What the drafts are goes there in one piece, with a number for every last token that there could be; τ and the last
    token of each draft come back in one, with the sums that show whether p was one.
    """
    mass = masses(p, rows=sum(len(draft.tokens) + 1 for batch in batches for draft in batch.drafts))
    for batch in batches:
        _checked(batch, p.shape[1])
    results: list[Tensor] = []
    for batch, laid in zip(batches, _sent(p.device, batches), strict=True):
        results += agreed(p, laid) if isinstance(laid, Races) else _drawn(batch.mode, p, mass, laid)
    mass, *numbers = fetched(mass, *results)
    check_masses(mass)
    ends = zip(batches, numbers[::2], numbers[1::2], strict=True)
    return [_verdicts(batch.drafts, _ended(batch.drafts, tau.tolist(), last.tolist())) for batch, tau, last in ends]


def _sent(device: torch.device, batches: Sequence[Batch]) -> list[Window | Races]:
    """Each batch as its rule reads it, all by one copy."""
    laid = [
        races(each) if each.mode in _RACED else window(each, _accept_noise(each), _last_noise(each)) for each in batches
    ]
    parts = iter(moved(device, *chain(*laid)))
    return [type(each)(*islice(parts, len(each))) for each in laid]


def _drawn(mode: Mode, p: Tensor, mass: Tensor, window: Window) -> tuple[Tensor, Tensor]:
    """τ of each draft and its last token, both int64 [B]."""
    tau, law = judged(mode, p, mass, window)
    return tau, sample(law, window.last.gather(1, tau[:, None])[:, 0])


def _last_noise(batch: Batch) -> Tensor:
    """The uniform of the last token behind each step of each draft; behind all of it is a bonus or plain token."""
    places = batch.places(extra=1)
    return final_uniform(*batch.keys(places), [step < len(batch.drafts[b].tokens) for b, step in places])


def _ended(drafts: Sequence[Draft], kept: Sequence[int], last: Sequence[int]) -> Committed:
    """The first `kept` tokens of each draft and its last token."""
    return [(*draft.tokens[:count], token) for draft, count, token in zip(drafts, kept, last, strict=True)]


def _verdicts(drafts: Sequence[Draft], committed: Committed) -> list[Verdict]:
    return [
        Verdict(tokens, accepted=len(tokens) - 1, drafted=len(draft.tokens))
        for tokens, draft in zip(committed, drafts, strict=True)
    ]
