"""Drafts from corpus counts of what followed the last token, without a vector over the vocabulary."""

from collections.abc import Sequence

import torch
from torch import Tensor

from drafter_service.drafters.sequence_lengths import UNBOUNDED, SequenceLengths
from drafter_service.sessions.draft_session import DraftSession
from drafter_service.sessions.drafter import (
    DraftedToken,
    DrafterInfo,
    DraftFailure,
    NoGuess,
    ScheduledSession,
    StepResult,
)
from drafter_service.sessions.tree_session import TreeSession
from specdec.engine import SequenceMemory
from specdec.errors import NoDistribution
from specdec.rules.coupling import choose
from specdec.rules.draft import SparseProbs
from specdec.rules.multidraft import Siblings
from specdec.rules.proposal import propose, propose_siblings
from specdec.rules.speculation import Mode
from specdec.sampling.among import among
from specdec.sampling.distribution import probabilities
from specdec.sources.counts import Counts

_BACK_OFF = 1.0
"""Weight of the unigram distribution in a bigram row, in counts (Dirichlet smoothing)."""
_ALONE = Siblings.WITH_REPLACEMENT
"""Any rule works here, because a chain has no siblings."""


class CountsDrafter:
    """A Drafter whose q̂ is made from counts and the request's sampling parameters."""

    def __init__(self, name: str, counts: Counts, support: int) -> None:
        """Create the drafter. q̂ has at most `support` ids."""
        self._counts = counts
        self._support = support
        self._lengths = SequenceLengths()
        self._unigram = (counts.single + 1.0) / (counts.single + 1.0).sum()
        self._common = self._unigram.topk(min(support, len(self._unigram))).indices
        """Most frequent ids of the corpus, int64 [at most `support`]."""
        self.sequences: SequenceMemory = self._lengths
        self.info = DrafterInfo(name, counts.tokenizer_hash, len(counts.single), UNBOUNDED, 0.0, "counts")

    def step(self, batch: Sequence[ScheduledSession]) -> list[StepResult]:
        """Draft one token for each session whose tokens have all been read."""
        results: list[StepResult] = []
        for scheduled in batch:
            session = scheduled.session
            self._lengths.extend(session.key, scheduled.count)
            if self._lengths.length(session.key) == len(session):
                results.append(self._draft(session))
        return results

    def _draft(self, session: DraftSession) -> StepResult:
        try:
            return DraftedToken(session, *self._drawn(session))
        except NoDistribution:  # none of the candidates may be drawn
            return NoGuess(session)
        except Exception as error:  # noqa: BLE001 - a failing row must not affect the others
            return DraftFailure(session, error)

    def _drawn(self, session: DraftSession) -> tuple[int, SparseProbs | None]:
        """Return a token, and its q̂ if the mode sends one."""
        ids, mass = self.candidates(session.tokens_from(len(session) - 1)[0])
        params, history = among(ids, session.params, session.history)
        q = probabilities(mass.log()[None], [params], [history])
        seeds, positions = [session.params.seed], [len(session)]
        if session.mode is Mode.COUPLED:
            if not bool(q.isfinite().all()):
                raise NoDistribution("none of the candidates may be drawn")
            return int(choose(q, ids[None], seeds, positions)), None
        if isinstance(session, TreeSession):
            places = [session.plan.first_place]
            ((token,),), (probs,) = propose_siblings(_ALONE, q, seeds, positions, self._support, places)
        else:
            (token,), (probs,) = propose(session.mode, q, seeds, positions, self._support, [session.chain_start])
        return int(ids[token]), SparseProbs(ids[probs.ids], probs.weights)

    def candidates(self, last: int) -> tuple[Tensor, Tensor]:
        """Return the ids that may follow `last`, ascending, and their mass: its top followers and frequent ids."""
        if self._counts.order == 1:
            ids = self._common.sort().values
            return ids, self._unigram[ids]
        start, end = self._counts.starts[last : last + 2].tolist()
        followers, pairs = self._counts.seconds[start:end], self._counts.pairs[start:end]
        if len(pairs) > self._support:
            pairs, best = pairs.topk(self._support)
            followers = followers[best]
        ids = torch.unique(torch.cat((followers, self._common)))
        mass = _BACK_OFF * self._unigram[ids]
        mass[torch.searchsorted(ids, followers)] += pairs
        return ids, mass
