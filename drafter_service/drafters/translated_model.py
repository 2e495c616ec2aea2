"""An adapter that gives a draft model the target's vocabulary (TLI; Timor et al. 2025, arXiv 2502.05202).

Tokens that a target commits are re-encoded as text in the model's own tokens. Logits of shared tokens move to the
target's ids, and every other id gets probability 0. The distribution is therefore q restricted to the shared tokens and
normalised before a draft is drawn: q̂ is the distribution of the draft, in the target's ids.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from drafter_service.drafters.retokenized import Retokenized, Translation
from specdec.engine import Chunk, Engine
from specdec.engine.kv.pool import KvMemory

_LONGER = 2
"""Maximum number of drafter tokens per target token that memory is taken for and that are computed."""


@dataclass(slots=True)
class _Sequence:
    text: Retokenized
    limit: int
    """Maximum number of tokens that the model may compute."""
    done: int
    """Number of target tokens that are computed."""


class TranslatedModel:
    """An Engine over the target's tokens. A chunk has logits for its last token at most."""

    def __init__(self, model: Engine, translation: Translation) -> None:
        """Create the adapter. `model` may also serve other sequences directly."""
        self._model = model
        self._translation = translation
        self.vocab_size = len(translation.target.tokens)
        self.context_length = model.context_length
        self.tokenizer_hash = translation.target.digest
        self._sequences: dict[str, _Sequence] = {}
        self._places = torch.full((self.vocab_size,), model.vocab_size)
        """Column of each target id's logit, int64 [V]. Ids unknown to the model point one column past its own."""
        same = translation.same
        self._places[list(same)] = torch.tensor(list(same.values()), dtype=torch.int64)

    @property
    def memory(self) -> KvMemory:
        return self._model.memory

    def can_ever_admit(self, limit: int) -> bool:
        return self._model.can_ever_admit(self._limit(limit))

    def admit(self, session: str, limit: int, tokens: Sequence[int] = (), domain: str = "") -> bool:
        text = Retokenized(self._translation)
        text.read(tokens)
        most = self._limit(limit)
        if len(text.ids) > most or not self._model.admit(session, most, text.ids, domain):
            return False
        done = text.covered(self._model.length(session))
        self._sequences[session] = _Sequence(text, most, max(0, min(done, len(tokens) - 1)))
        return True

    def reserve(self, session: str, length: int) -> bool:
        """Reserve memory for about as many tokens as are needed; `forward` reserves the rest."""
        known = self._sequences[session]
        expected = len(known.text.ids) + _LONGER * max(0, length - len(known.text))
        return self._model.reserve(session, min(expected, known.limit))

    def release(self, session: str) -> None:
        del self._sequences[session]
        self._model.release(session)

    def length(self, session: str) -> int:
        return self._sequences[session].done

    def truncate(self, session: str, length: int) -> None:
        known = self._sequences[session]
        known.text.truncate(length)
        known.done = min(known.done, length)
        self._model.truncate(session, min(self._model.length(session), len(known.text.ids)))

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        """Return logits in the target's ids; NaN for a sequence that the model has no more room for.

        Returns:
            float32 [Σ chunk.logits, V].
        """
        own = [self._chunk(chunk) for chunk in chunks]
        logits = self._model.forward([each for each in own if each is not None])
        for chunk in chunks:
            self._sequences[chunk.session].done += len(chunk.tokens)
        computed = [each is not None for each, chunk in zip(own, chunks, strict=True) if chunk.logits]
        return self._translated(logits, computed)

    def _chunk(self, chunk: Chunk) -> Chunk | None:
        """Return the model's part of a chunk, or None if it computes nothing or has no room."""
        session, known = chunk.session, self._sequences[chunk.session]
        end = known.done + len(chunk.tokens)
        computed = self._model.length(session)
        if end > len(known.text):
            kept = known.text.read(chunk.tokens[len(known.text) - known.done :])
            computed = min(computed, kept)
        wanted = known.text.position(end)
        computed = min(computed, wanted - chunk.logits)  # logits need a token to compute
        self._model.truncate(session, computed)
        if wanted > known.limit or not self._model.reserve(session, wanted) or computed == wanted:
            return None
        return Chunk(session, known.text.ids[computed:wanted], logits=chunk.logits)

    def _translated(self, logits: Tensor, computed: Sequence[bool]) -> Tensor:
        """Map the model's logits [computed rows, model V] to the target's [rows, V]."""
        self._places = self._places.to(logits.device)
        none = logits.new_full((len(logits), 1), -torch.inf)
        moved = torch.cat((logits, none), dim=1)[:, self._places]
        if all(computed):
            return moved
        rows = logits.new_full((len(computed), self.vocab_size), torch.nan)
        rows[torch.tensor(computed, device=logits.device)] = moved
        return rows

    def _limit(self, limit: int) -> int:
        """Return the model's limit for a sequence of up to `limit` target tokens: more than `limit` if that fits."""
        own = min(limit, self.context_length)
        more = min(_LONGER * limit + len(self._translation.tokenizer.beginning), self.context_length)
        return more if self._model.can_ever_admit(more) else own
