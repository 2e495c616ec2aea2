"""Stand-ins for parts of a drafter: a model that is a function of its whole prefix, and a recording stream."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from drafter_service.sessions.stream import Reply
from specdec.engine import Chunk
from specdec.engine.kv.pool import KvMemory
from specdec.rules.draft import SparseProbs
from specdec.rules.proposal import propose
from specdec.rules.speculation import Mode
from specdec.sampling.distribution import History, probabilities
from specdec.sampling.params import SamplingParams
from specdec.wire.draft import DraftTokens
from specdec.wire.session import Commit, DraftEnd, Nack, Open

VOCAB = 11
CONTEXT = 64


def logits_after(prefix: Sequence[int]) -> Tensor:
    """Return float32 logits [VOCAB]. One wrong token anywhere in the prefix changes all of them."""
    seed = 17
    for token in prefix:
        seed = (seed * 1_000_003 + token + 1) % 2**31
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


class PrefixModel:
    """A model that stores its input tokens as its KV and reads nothing else."""

    vocab_size = VOCAB
    context_length = CONTEXT
    tokenizer_hash = "c0ffee"

    def __init__(self, tokens: int = 1000) -> None:
        self.free = tokens
        self.kv: dict[str, list[int]] = {}
        self.limits: dict[str, int] = {}
        self.held: dict[str, int] = {}
        """Tokens of memory per session."""
        self.passes: list[list[Chunk]] = []
        self.before_pass: Callable[[], None] = lambda: None
        self.spoiled: set[str] = set()
        """Sessions whose logits are NaN."""

    @property
    def memory(self) -> KvMemory:
        held = sum(self.held.values())
        return KvMemory(self.free + held, held, 0)

    def can_ever_admit(self, limit: int) -> bool:
        return limit <= self.free + sum(self.held.values())

    def admit(self, session: str, limit: int, tokens: Sequence[int] = (), domain: str = "") -> bool:
        if session in self.kv:
            raise ValueError(f"{session} is there already")
        if len(tokens) > self.free:
            return False
        self.free -= len(tokens)
        self.kv[session], self.limits[session], self.held[session] = [], limit, len(tokens)
        return True

    def reserve(self, session: str, length: int) -> bool:
        more = max(0, length - self.held[session])
        if length > self.limits[session]:
            raise ValueError(f"{length} tokens of {session}, {self.limits[session]} are allowed")
        if more > self.free:
            return False
        self.free -= more
        self.held[session] += more
        return True

    def release(self, session: str) -> None:
        del self.kv[session], self.limits[session]
        self.free += self.held.pop(session)

    def length(self, session: str) -> int:
        return len(self.kv[session])

    def truncate(self, session: str, length: int) -> None:
        if not 0 <= length <= len(self.kv[session]):
            raise ValueError(f"cannot truncate {len(self.kv[session])} tokens to {length}")
        del self.kv[session][length:]

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        self.before_pass()
        self.passes.append(list(chunks))
        rows: list[Tensor] = []
        for chunk in chunks:
            kv = self.kv[chunk.session]
            kv += chunk.tokens
            if not chunk.tokens or not self.reserve(chunk.session, len(kv)):
                raise ValueError(f"chunk of {len(chunk.tokens)} tokens, {len(kv)} in all")
            wrong = torch.nan if chunk.session in self.spoiled else 0.0
            rows += [logits_after(kv[: len(kv) - back]) + wrong for back in reversed(range(chunk.logits))]
        return torch.stack(rows) if rows else torch.empty(0, VOCAB)


class ListStream:
    """A Stream that records the frames it receives."""

    def __init__(self, number: int = 1, verifier_id: str = "") -> None:
        self.number = number
        self.verifier_id = verifier_id or f"verifier {number}"
        self.vocabulary = ""
        self.full = False
        self.frames: list[Sequence[Reply]] = []
        """Replies in each frame."""
        self._delivered = threading.Condition()

    def deliver(self, replies: Sequence[Reply]) -> None:
        with self._delivered:
            self.frames.append(replies)
            self._delivered.notify_all()

    def until(self, happened: Callable[[], bool]) -> None:
        """Wait for frames until `happened` returns true."""
        with self._delivered:
            assert self._delivered.wait_for(happened, timeout=60), self.frames

    @property
    def drafts(self) -> list[DraftTokens]:
        return [reply for frame in self.frames for reply in frame if isinstance(reply, DraftTokens)]

    @property
    def drafted(self) -> int:
        """Number of drafted tokens of all sessions."""
        return sum(len(draft.draft.tokens) for draft in self.drafts)

    @property
    def nacks(self) -> list[Nack]:
        return [reply for frame in self.frames for reply in frame if isinstance(reply, Nack)]

    @property
    def ends(self) -> list[DraftEnd]:
        return [reply for frame in self.frames for reply in frame if isinstance(reply, DraftEnd)]

    def tokens(self, session_id: str = "s") -> list[int]:
        return [token for draft in self.drafts if draft.session_id == session_id for token in draft.draft.tokens]


OPEN = Open("s", 1, (1, 2, 3), 2, SamplingParams(seed=5), Mode.REJECTION, gamma=3, max_len=32)
"""A session to start from; tests change it with `replace`."""


def commit(base_len: int, *tokens: int, gamma: int = 3, epoch: int = 1, session_id: str = "s") -> Commit:
    return Commit(session_id, epoch, base_len, tokens, gamma)


def expected_drafts(opened: Open, count: int, support: int = 64) -> list[tuple[int, SparseProbs | None]]:
    """Return the drafts expected after `opened`, computed from the whole prefix for each token."""
    tokens = list(opened.tokens)
    drawn: list[tuple[int, SparseProbs | None]] = []
    for _ in range(count):
        history = History(tokens[: opened.prompt_len], tokens[opened.prompt_len :])
        q = probabilities(logits_after(tokens)[None], [opened.params], [history])
        starts = [len(opened.tokens)]
        (token,), probs = propose(opened.mode, q, [opened.params.seed], [len(tokens)], support, starts)
        drawn.append((token, probs[0] if probs else None))
        tokens.append(token)
    return drawn


def continued(opened: Open, *tokens: int) -> Open:
    """Return a copy of the session with more committed tokens."""
    return replace(opened, tokens=(*opened.tokens, *tokens))
