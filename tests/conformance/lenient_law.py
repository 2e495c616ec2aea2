"""The law that Leviathan et al. publish for lenience (arXiv 2211.17192, §A.5), restated."""

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor

from specdec.rules.draft import SparseProbs
from specdec.sampling.params import SamplingParams
from tests.conformance.exact_chain import Drafter, completed
from tests.conformance.g_test import Law
from tests.conformance.plain_model import PlainModel
from tests.conformance.table_models import Context, Tables
from tests.support.draft_laws import compress

Going = dict[tuple[Context, int], float]
"""The probability of each unfinished output together with the number of drafts of its round still to be judged."""


def published(tables: Tables, drafter: Drafter, gamma: int, lenience: float) -> Tensor:
    """Return the law of one round. x ~ q is kept with min(1, p/(ℓq)); after a rejection, sample from norm((p - q)₊)."""
    committed: dict[Context, float] = defaultdict(float)
    going: dict[Context, float] = {(): 1.0}
    for _ in range(gamma):
        longer: dict[Context, float] = {}
        for context, chance in going.items():
            p, q = tables.p([context])[0], dense(drafter([context])[0][0].sent, tables.vocab_size)
            kept, recovered = judged(p, q, lenience)
            for token in range(tables.vocab_size):
                longer[*context, token] = chance * float(kept[token])
                committed[*context, token] += chance * float(recovered[token])
        going = longer
    for context, chance in going.items():
        for token, bonus in enumerate(tables.p([context])[0].tolist()):
            committed[*context, token] += chance * bonus
    return completed(committed, tables, gamma + 1)


def judged(p: Tensor, q: Tensor, lenience: float) -> tuple[Tensor, Tensor]:
    """Return the probabilities that a token is drafted and kept, and that it replaces a rejected draft, both [V]."""
    kept = torch.minimum(q, p / lenience)
    rest = (p - q).clamp_min(0)
    rest = rest if float(rest.sum()) > 0 else p
    return kept, (1 - kept.sum()) * rest / rest.sum()


@dataclass(frozen=True)
class Rounds:
    """Generations in rounds of `gamma` drafts, or of as many as fit before the token after them."""

    target: PlainModel
    drafter: PlainModel
    params: SamplingParams
    support: int
    """Number of ids in q̂."""
    gamma: int
    lenience: float

    def law(self, prompt: Context, length: int, end: int) -> Law:
        """Return the published law, round by round, of outputs that end with `end` or after `length` tokens."""
        done: Law = defaultdict(float)
        going: Going = {((), min(self.gamma, length - 1)): 1.0}
        for room in range(length - 2, -2, -1):
            going = self._longer(going, prompt, min(self.gamma, room))
            for state in [state for state in going if room < 0 or state[0][-1] == end]:
                done[state[0]] += going.pop(state)
        return dict(done)

    def _longer(self, going: Going, prompt: Context, fresh: int) -> Going:
        """Extend outputs by one token. A round that begins after the token has `fresh` drafts to judge."""
        outputs = list(dict.fromkeys(output for output, _ in going))
        p, q = (self._laws(model, prompt, outputs) for model in (self.target, self.drafter))
        longer: Going = defaultdict(float)
        for (output, drafts), chance in going.items():
            kept, last = self._judged(p[output], q[output]) if drafts else (torch.zeros_like(p[output]), p[output])
            for token, (one, other) in enumerate(zip(kept.tolist(), last.tolist(), strict=True)):
                longer[(*output, token), drafts - 1] += chance * one
                longer[(*output, token), fresh] += chance * other
        return {state: chance for state, chance in longer.items() if chance}

    def _judged(self, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        return judged(p, dense(compress(q[None], self.support)[0], len(q)), self.lenience)

    def _laws(self, model: PlainModel, prompt: Context, outputs: list[Context]) -> dict[Context, Tensor]:
        rows = torch.tensor(model.rows(self.params, prompt, outputs), dtype=torch.float64)
        return dict(zip(outputs, rows, strict=True))


def dense(sent: SparseProbs, vocab_size: int) -> Tensor:
    """Return q̂ as a dense row."""
    row = torch.zeros(vocab_size, dtype=torch.float64)
    row[sent.ids] = sent.weights.double() / sent.weights.sum()
    return row
