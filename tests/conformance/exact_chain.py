"""The exact law of one round, by integrating the real `propose` and `verify` over their uniforms.

A draft is drawn by the inverse CDF of one uniform. The probability of each token is the length of an interval, and
bisection finds the ends of the interval. A position is kept if its own uniform is below a threshold, which bisection
finds as well. For every chain of drafts and every pattern of (below, above), the real `verify` returns the committed
tokens. The law is therefore a finite sum, and its only error is rounding. The distribution of the last token is read
from the call to `sample`, whose own law is proved separately (`sample_law`).
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from specdec.rules import acceptance, proposal, verification
from specdec.rules.draft import Draft, SparseProbs, Verdict
from specdec.rules.rng import Lane
from specdec.rules.speculation import Mode
from specdec.sampling import distribution as sampling
from tests.conformance.table_models import Context, Tables

BISECTIONS = 54
BELOW_ONE = 1 - 2.0**-53
"""The largest float64 below 1."""


@dataclass(frozen=True)
class Drawn:
    """One of the drafts that a context can get."""

    token: int
    chance: float
    sent: SparseProbs
    """The q̂ sent with the draft."""


Drafter = Callable[[Sequence[Context]], list[list[Drawn]]]
"""Return the possible drafts after each context."""


@dataclass(frozen=True)
class Outcome:
    """Law of the tokens of one round, and the number of accepted drafts."""

    law: Tensor
    """Law of the first γ + 1 tokens if the rest is drawn from p, float64 [V ** (γ + 1)], in the order of `contexts`."""
    accepted: float
    """Expected number of accepted drafts."""


def outcome(tables: Tables, mode: Mode, drafter: Drafter, gamma: int, lenience: float = 1.0) -> Outcome:
    """Enumerate one round of `mode`."""
    chains, chances = _chains(drafter, gamma)
    judge = _Judge(tables, mode, chains, lenience)
    thresholds = judge.thresholds()
    committed: dict[Context, float] = defaultdict(float)
    accepted = 0.0
    for pattern in product((True, False), repeat=gamma):
        below = torch.tensor(pattern)
        weights = chances * torch.where(below, thresholds, 1 - thresholds).prod(1)
        verdicts, laws = judge(torch.where(below, thresholds / 2, (1 + thresholds) / 2).clamp_max(BELOW_ONE))
        for verdict, law, weight in zip(verdicts, laws, weights.tolist(), strict=True):
            accepted += weight * verdict.accepted
            for token, chance in enumerate((law / law.sum()).tolist() if weight else ()):
                committed[(*verdict.tokens[:-1], token)] += weight * chance
    return Outcome(completed(committed, tables, gamma + 1), accepted)


def completed(committed: dict[Context, float], tables: Tables, length: int) -> Tensor:
    """Return the law of `length` tokens, float64 [V ** length], if committed prefixes continue with draws from p."""
    size = tables.vocab_size
    law = torch.zeros(1, dtype=torch.float64)
    for step in range(length):
        law = (law[:, None] * tables.reference(step)).flatten()
        for beginning, chance in committed.items():
            if len(beginning) == step + 1:
                law[sum(token * size ** (step - at) for at, token in enumerate(beginning))] += chance
    return law


def proposed(tables: Tables, mode: Mode, support: int) -> Drafter:
    """Return a drafter with the tokens that the real `propose` draws and the q̂ it sends."""

    def drafter(contexts: Sequence[Context]) -> list[list[Drawn]]:
        q = tables.q(contexts)

        def draw(u: Tensor) -> proposal.Proposal:
            return _propose(mode, q, support, u)

        ends = torch.stack([_end(lambda u, v=v: torch.tensor(draw(u)[0]) <= v, len(q)) for v in range(q.shape[1])], 1)
        starts = torch.cat([torch.zeros(len(q), 1, dtype=torch.float64), ends[:, :-1]], dim=1)
        found: list[list[Drawn]] = [[] for _ in contexts]
        for low, high in zip(starts.unbind(1), ends.unbind(1), strict=True):
            tokens, sent = draw((low + high) / 2)
            for row in (high > low).nonzero()[:, 0].tolist():
                found[row].append(Drawn(tokens[row], float(high[row] - low[row]), sent[row]))
        return found

    return drafter


def sample_law(p: Tensor) -> Tensor:
    """Return the probability that the real `sample` gives each id, float64 [N, V]."""
    ends = [_end(lambda u, v=v: sampling.sample(p, u) <= v, len(p)) for v in range(p.shape[1])]
    return torch.stack(ends, 1).diff(dim=1, prepend=torch.zeros(len(p), 1, dtype=torch.float64))


def _end(holds: Callable[[Tensor], Tensor], rows: int) -> Tensor:
    """Return the least uniform of each row at which `holds` is false, float64 [rows], or 1 if it is always true."""
    low, high = torch.zeros(rows, dtype=torch.float64), torch.ones(rows, dtype=torch.float64)
    if not bool((first := holds(low)).any()):
        return low
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        held = holds(middle.clamp_max(BELOW_ONE))
        low, high = torch.where(held, middle, low), torch.where(held, high, middle)
    # Bisection stops one step short of the ends.
    return torch.where(first, torch.where(low >= BELOW_ONE, 1.0, low), 0.0)


def _propose(mode: Mode, q: Tensor, support: int, u: Tensor) -> proposal.Proposal:
    at = [0] * len(q)
    with patch.object(proposal, "uniform", lambda *_, **__: u):
        return proposal.propose(mode, q, at, at, support, at)


def _chains(drafter: Drafter, gamma: int) -> tuple[list[Draft], Tensor]:
    """Return every chain of drafts and its probability."""
    chains, chances = [Draft()], [1.0]
    for _ in range(gamma):
        drawn = drafter([chain.tokens for chain in chains])
        longer = [(a, b, c) for a, b, choices in zip(chains, chances, drawn, strict=True) for c in choices]
        chains = [Draft((*chain.tokens, each.token), (*chain.probs, each.sent)) for chain, _, each in longer]
        chances = [chance * each.chance for _, chance, each in longer]
    return chains, torch.tensor(chances, dtype=torch.float64)


class _Judge:
    """The real `verify` on all chains at once, with given uniforms."""

    def __init__(self, tables: Tables, mode: Mode, chains: list[Draft], lenience: float) -> None:
        self._mode, self._chains, self._lenience = mode, chains, lenience
        self._gamma = len(chains[0].tokens)
        contexts = [chain.tokens[:step] for chain in chains for step in range(self._gamma + 1)]
        self._p = tables.p(contexts).view(len(chains), self._gamma + 1, -1)

    def __call__(self, u: Tensor) -> tuple[list[Verdict], Tensor]:
        """Return the verdicts at uniforms u [N, Γ] and the last tokens' distributions [N, V].

        N is a multiple of the chains.
        """
        times = len(u) // len(self._chains)
        laws: list[Tensor] = []

        def recorded(law: Tensor, _: Tensor) -> Tensor:
            laws.append(law)
            return law.argmax(1)

        with _noise(u), patch.object(acceptance, "sample", recorded):
            verdicts = verification.verify(
                self._mode,
                self._p.repeat(times, 1, 1).flatten(0, 1),
                self._chains * times,
                [0] * len(u),
                [0] * len(u),
                [self._lenience] * len(u),
            )
        last = torch.tensor([verdict.tokens[-1] for verdict in verdicts])
        # If nothing was drawn, the last token is certain.
        return verdicts, laws[0] if laws else one_hot(last, self._p.shape[-1]).double()

    def thresholds(self) -> Tensor:
        """Return the uniform below which each position is kept [chains, Γ].

        One uniform moves while the others of its chain are all 0, and then while they are all close to 1. The first
        setting shows a rejection, the second a success. A position that shows neither decides nothing.
        """
        count = len(self._chains)
        moved = torch.eye(self._gamma, dtype=torch.bool).repeat_interleave(count, 0).repeat(2, 1)
        others = torch.tensor([0.0, BELOW_ONE], dtype=torch.float64).repeat_interleave(self._gamma * count)[:, None]

        def kept(u: Tensor) -> Tensor:
            verdicts, _ = self(torch.where(moved, u[:, None], others))
            return torch.tensor([verdict.accepted for verdict in verdicts])

        first = kept(torch.zeros(len(moved), dtype=torch.float64))
        ends = _end(lambda u: kept(u) == first, len(moved))
        return ends.view(2, self._gamma, count).amin(0).T


@contextmanager
def _noise(u: Tensor) -> Iterator[None]:
    """Give verdicts the accept uniforms u [N, Γ]. The other uniforms do not matter."""

    def given(seeds: Sequence[int], positions: Sequence[int], lane: Lane, *_: object, **__: object) -> Tensor:
        return u.flatten() if lane is Lane.ACCEPT else torch.zeros(len(seeds), dtype=torch.float64)

    with patch.object(verification, "uniform", given):
        yield
