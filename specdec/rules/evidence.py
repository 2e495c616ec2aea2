"""Evidence for a verdict, token by token: recomputed from the inputs of the verdict, without changing it."""

import torch
from torch import Tensor

from specdec.rules.acceptance import thresholds
from specdec.rules.checks import masses
from specdec.rules.draft import Draft
from specdec.rules.judged import JudgedToken
from specdec.rules.padding import DraftBatch, flatten_drafts, pad_drafts
from specdec.rules.speculation import Mode
from specdec.rules.verification import accept_noise

RATIO = (Mode.REJECTION, Mode.BLOCK)
"""Modes that compare a uniform number with a ratio of probabilities."""


def evidence(
    mode: Mode, p: Tensor, draft: Draft, seed: int, position: int, lenience: float = 1.0
) -> tuple[JudgedToken, ...]:
    """The evidence for each token of one draft; a row of p that is not a distribution gives 0.

    Args:
        p: target distributions of the draft [γ + 1, V], the same as given to `specdec.rules.verification.verify`.
        position: absolute position of the first drafted token.
        lenience: ℓ in (0, 1].
    """
    if not draft.tokens:
        return ()
    mass = masses(p, rows=len(draft.tokens) + 1).cpu()
    p = p.cpu()
    if mode not in RATIO:
        rows = torch.arange(len(draft.tokens))
        own = p[rows, torch.tensor(draft.tokens)].double() / mass[:-1]
        return tuple(JudgedToken(value) for value in own.nan_to_num_(0.0).tolist())
    batch = DraftBatch(mode, [draft], [seed], [position], [lenience], [0])
    u = accept_noise(batch)
    padded = pad_drafts(flatten_drafts(batch, u, last=torch.zeros(len(mass), dtype=torch.float64)))
    columns = (*(each[0] for each in thresholds(mode, p, mass, padded)), u)
    return tuple(
        JudgedToken(p_x, q_x, of_u, threshold)
        for p_x, q_x, threshold, of_u in zip(*(column.tolist() for column in columns), strict=True)
    )
