"""The law that Leviathan et al. publish for lenience (arXiv 2211.17192, §A.5), restated."""

from collections import defaultdict

import torch
from torch import Tensor

from specdec.draft import SparseProbs
from tests.conformance.enumeration import Drafter, completed
from tests.conformance.tables import Context, Tables


def published(tables: Tables, drafter: Drafter, gamma: int, lenience: float) -> Tensor:
    """The law of one round, restated: x ~ q is kept with min(1, p/(ℓq)); after a rejection, norm((p - q)₊)."""
    committed: dict[Context, float] = defaultdict(float)
    going: dict[Context, float] = {(): 1.0}
    for _ in range(gamma):
        longer: dict[Context, float] = {}
        for context, chance in going.items():
            p, q = tables.p([context])[0], dense(drafter([context])[0][0].sent, tables.vocab_size)
            kept = torch.minimum(q, p / lenience)
            rest = (p - q).clamp_min(0)
            rest = rest if float(rest.sum()) > 0 else p
            for token in range(tables.vocab_size):
                longer[*context, token] = chance * float(kept[token])
                committed[*context, token] += chance * float((1 - kept.sum()) * rest[token] / rest.sum())
        going = longer
    for context, chance in going.items():
        for token, bonus in enumerate(tables.p([context])[0].tolist()):
            committed[*context, token] += chance * bonus
    return completed(committed, tables, gamma + 1)


def dense(sent: SparseProbs, vocab_size: int) -> Tensor:
    """q̂ as a row."""
    row = torch.zeros(vocab_size, dtype=torch.float64)
    row[sent.ids] = sent.weights.double() / sent.weights.sum()
    return row
