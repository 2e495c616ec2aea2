"""A draft head that reads the features which verifiers send: an Engine whose tokens are paired with states.

A sequence of n computed tokens has n - 1 slots: slot t holds the pair of the state after token t and token t + 1, as in
`specdec.engine.heads.head_kv`. A token without a feature is paired with the head's own last state, as a draft is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from drafter_service.sessions.draft_session import DraftSession
from specdec.engine import Chunk
from specdec.engine.cpu.product import pack_products
from specdec.engine.heads.checkpoint import features_name, load_head
from specdec.engine.heads.eagle3 import Eagle3Head
from specdec.engine.heads.head_kv import HeadKv
from specdec.engine.heads.headed import target_of
from specdec.engine.kv.pool import KvMemory
from specdec.engine.loader import DTYPES, ModelFacts, load_ends
from specdec.errors import InternalError
from specdec.wire.features import Features


@dataclass(frozen=True, slots=True)
class _Fed:
    """State of one sequence."""

    limit: int
    domain: str
    known: int
    """Position after the last slot whose state is the target's; -1 if the slots must begin again."""
    unread: Tensor
    """Features of the next slots [n, hidden]."""
    last: Tensor | None = None
    """The head's state after the last slot of the target, for the first step without a feature; None if unknown."""
    own: Tensor | None = None
    """The head's state after its last slot, for the next step without a feature; None if unknown."""

    @property
    def end(self) -> int:
        """Position after the last feature."""
        return self.known + len(self.unread)

    def computed(self, count: int, state: Tensor) -> "_Fed":
        """Return the state after `count` more slots, whose last state of the head is given."""
        if not len(self.unread):
            return replace(self, own=state)
        return replace(self, known=self.known + count, unread=self.unread[count:], last=state, own=state)


class FedHead:
    """A head, and its sequences in drafters. It computes no target, only the embedding and the logits."""

    def __init__(self, head: Eagle3Head, kv: HeadKv, facts: ModelFacts, features: str) -> None:
        """Create the engine; `facts` are the target's, and `features` is the name of the features that it reads."""
        self._head = head
        self._kv = kv
        self._none = torch.zeros(0, head.config.layer.hidden_size, dtype=head.norm.weight.dtype)
        self._fed: dict[str, _Fed] = {}
        self.facts = facts
        self.features = features
        self.vocab_size = facts.vocab_size
        self.context_length = facts.context_length
        self.tokenizer_hash = facts.tokenizer_hash

    @classmethod
    def load(cls, head_folder: Path, path: Path, *, kv_bytes: int, threads: int, **options: Any) -> Self:
        """Load a head, and of its target the embedding and the output layer.

        Args:
            head_folder: a `speculators` or EAGLE-3 folder.
            path: folder of the target.
            kv_bytes: budget for the head's keys and values.
            threads: number of PyTorch threads in this process.
            options: further options of the model, as for `load_checked`.

        Raises:
            ModelRefused: a folder cannot be served, or the head was made for another target.
        """
        torch.set_num_threads(threads)
        dtype, pickle = options["dtype"], options["allow_pickle"]
        device = "cpu" if options["device"] == "auto" else options["device"]
        decoder, facts, layers = load_ends(path, dtype, device, allow_pickle=pickle)
        head = load_head(head_folder, target_of(decoder, DTYPES[dtype], layers), allow_pickle=pickle)
        pack_products(head, options["products"])
        if options.get("compiled"):
            head.compile()
        features = features_name(head_folder, dtype)
        kv = HeadKv(head, DTYPES[dtype], decoder.device, kv_bytes, options["attention"], features)
        kv.warm(tapped=False)
        return cls(head, kv, facts, features)

    @property
    def memory(self) -> KvMemory:
        return self._kv.memory

    def can_ever_admit(self, limit: int) -> bool:
        return 0 < limit <= min(self._kv.capacity, self.context_length)

    def admit(self, session: str, limit: int, tokens: Sequence[int] = (), domain: str = "") -> bool:
        # Slots take memory once it is known where the features begin.
        if not self.can_ever_admit(limit) or not self._kv.open(session, limit, tokens[:2], domain, 0):
            return False
        self._fed[session] = _Fed(limit, domain, 0, self._none)
        return True

    def reserve(self, session: str, length: int) -> bool:
        return session in self._kv and self._kv.reserve(session, length - 1)

    def release(self, session: str) -> None:
        """End the sequence. Only slots with states of the target stay cached for others."""
        fed = self._fed.pop(session)
        if session in self._kv:
            self._kv.truncate(session, fed.known)
            self._kv.close(session)

    def length(self, session: str) -> int:
        return self._kv.end(session) + 1 if session in self._kv else 0

    def truncate(self, session: str, length: int) -> None:
        """Keep the first `length` computed tokens, and of their slots those with states of the target.

        Features that were not read stay as long as all slots before them do.
        """
        fed = self._fed[session]
        if length - 1 < fed.known:
            fed = replace(fed, known=length - 1, unread=self._none, last=None)
        if session in self._kv:
            self._kv.truncate(session, fed.known)
            if self._kv.end(session) != fed.known:  # the head has seen no token before that length
                fed = replace(fed, known=-1)
        self._fed[session] = replace(fed, own=fed.last)

    def read_features(self, session: DraftSession, features: Features | None, *, opened: bool) -> None:
        """Add the features of committed tokens; see `FeatureReader`. If features are missing before these, the slots
        begin again.

        Features that do not end at the last token but one, or hold no numbers, are ignored.
        """
        key = session.key
        if opened:
            self._fed[key] = replace(self._fed[key], unread=self._none)
        if features is None or features.end != session.committed - 1:
            return
        states = features.states(self._none.shape[1], self._none.dtype)
        if states is None:
            return
        if features.start > self._fed[key].end or self._fed[key].known < 0:
            self._begin(key, session.tokens_from(0)[: features.start + 2], features.start)
        fed = self._fed[key]
        self._fed[key] = replace(fed, unread=torch.cat([fed.unread, states[fed.end - features.start :]]))

    def can_draft(self, session: str, committed: int) -> bool:
        """Whether there are features of all `committed` tokens but the last, for the next draft of a sequence."""
        fed = self._fed[session]
        return fed.end == committed - 1 and (len(fed.unread) > 0 or fed.own is not None)

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        """Compute tokens, and return the logits after the last token of each chunk with logits [n, vocab_size]."""
        left = [list(chunk.tokens) for chunk in chunks]
        normed: list[Tensor] = [self._none] * len(chunks)
        while rows := [row for row, tokens in enumerate(left) if tokens]:
            found = self._run([chunks[row].session for row in rows], [left[row] for row in rows])
            for row, each in zip(rows, found, strict=True):
                normed[row] = each
        wanted = [each for each, chunk in zip(normed, chunks, strict=True) if chunk.logits]
        if not wanted:
            return torch.empty(0, self.vocab_size)
        with torch.inference_mode():
            logits = self._head.logits(torch.stack(wanted), self.vocab_size)
        return logits.clone()  # a tensor from inference mode could not be written later

    def _run(self, sessions: Sequence[str], left: Sequence[list[int]]) -> Tensor:
        """Compute the tokens of each sequence that have features, or else one. Remove them from `left`.

        Returns:
            The normed states after the last computed token of each [B, hidden].
        """
        own = [self._fed[session] for session in sessions]
        states = [self._next_states(fed, len(tokens)) for fed, tokens in zip(own, left, strict=True)]
        counts = [len(each) for each in states]
        for session, count in zip(sessions, counts, strict=True):
            if not self._kv.reserve(session, self._kv.end(session) + count):
                raise InternalError(f"no memory for {count} more tokens of session {session}")
        read = [tokens[:count] for tokens, count in zip(left, counts, strict=True)]
        normed, after = self._kv.run(sessions, torch.cat(states), read)
        for session, fed, tokens, count, last in zip(sessions, own, left, counts, after, strict=True):
            del tokens[:count]
            self._fed[session] = fed.computed(count, last)
            if len(fed.unread):  # all slots have states of the target
                self._kv.seal(session)
        return normed

    def _next_states(self, fed: _Fed, most: int) -> Tensor:
        """Return the states that are paired with the next tokens [n, hidden], at most `most` tokens."""
        if len(fed.unread):
            return fed.unread[:most]
        return self._none.new_zeros(1, self._none.shape[1]) if fed.own is None else fed.own[None]

    def _begin(self, session: str, tokens: Sequence[int], start: int) -> None:
        """Begin the slots of a sequence at a position. Slots before it are those that other sequences have computed.

        `tokens` are those of the slots up to that position.
        """
        fed = self._fed[session]
        if session in self._kv:
            self._kv.close(session)
        if not self._kv.open(session, fed.limit, tokens, fed.domain, start):
            self._kv.open(session, fed.limit, tokens[:1], f"\0{session}", start)
        self._fed[session] = _Fed(fed.limit, fed.domain, start, self._none)
