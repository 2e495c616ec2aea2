"""Random tokens: drafts drawn uniformly from the whole vocabulary (Leviathan et al., arXiv 2211.17192, §3.6)."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from typing_extensions import override

from drafter_service.drafters.model_drafter import DraftRow, ModelDrafter
from drafter_service.drafters.sequence_lengths import UNBOUNDED, SequenceLengths
from specdec.engine import Chunk
from specdec.rules.draft import SparseProbs, uniform_probs
from specdec.rules.proposal import propose
from specdec.sampling import vocabulary
from specdec.sampling.distribution import History, probabilities


class UniformModel(SequenceLengths):
    """An Engine whose logits are all equal: the worst draft model, for theory and tests."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        """Create the model; `ids` is the tokenizer's vocabulary."""
        super().__init__()
        self.vocab_size = max(ids.values()) + 1
        self.context_length = UNBOUNDED
        self.tokenizer_hash = vocabulary.fingerprint(ids)

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        """Return zeros, float32 [Σ logits, V]."""
        for chunk in chunks:
            self.extend(chunk.session, len(chunk.tokens))
        return torch.zeros(sum(chunk.logits for chunk in chunks), self.vocab_size)


class UniformDrafter(ModelDrafter):
    """A ModelDrafter whose q̂ is not limited to its support where it is uniform over the whole vocabulary.

    Sampling parameters may make q another distribution, and an older verifier reads no uniform one. Such drafts have at
    most `support` ids, like those of a language model.
    """

    @override
    def _drawn(
        self, logits: Tensor, rows: Sequence[DraftRow], histories: Sequence[History]
    ) -> list[tuple[int, SparseProbs | None]]:
        return [
            self._uniform(logits[at : at + 1], row, history)
            or super(UniformDrafter, self)._drawn(logits[at : at + 1], [row], [history])[0]
            for at, (row, history) in enumerate(zip(rows, histories, strict=True))
        ]

    def _uniform(self, logits: Tensor, row: DraftRow, history: History) -> tuple[int, SparseProbs | None] | None:
        """Return a draft from the whole vocabulary, or None if q is not uniform or the verifier reads none such."""
        session = row.session
        q = probabilities(logits, [session.params], [history])
        if not session.opened.uniform or not bool(q.amin() == q.amax()):
            return None
        size, start = q.shape[1], session.chain_start
        (token,), probs = propose(session.mode, q, [session.params.seed], [row.position], size, [start])
        return token, uniform_probs(size) if probs else None
