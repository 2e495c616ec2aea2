"""Fakes: an engine with a table of logits, a target without a queue, and drafts written by a test."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import torch
from prometheus_client import CollectorRegistry
from torch import Tensor

from specdec.engine import Chunk
from specdec.engine.kv.pool import KvMemory
from specdec.rules.draft import NO_DRAFT, Draft, SparseProbs, Verdict
from specdec.rules.prefix import PrefixHash
from specdec.rules.speculation import Mode, Speculation
from specdec.sampling.params import SamplingParams
from specdec.wire.draft import DraftTokens
from specdec.wire.generation import Fallback, GenerationCall, Round, RoundDetail, Speedup
from verifier_service.backends.batch_plan import Gathers, Outcome, Row
from verifier_service.drafts.drafts import Proposal
from verifier_service.drafts.link import DrafterLink
from verifier_service.metrics import VerifierMetrics
from verifier_service.passes.sequence import Sequence as EngineSequence
from verifier_service.speculation.controller import BatchSpeculation
from verifier_service.speculation.costs import DrafterTimes

VOCABULARY = 16
GREEDY = SamplingParams(temperature=0.0)


def following(token: int) -> int:
    """Return the table engine's next token."""
    return (token * 3 + 1) % VOCABULARY


def continuation(token: int, count: int) -> tuple[int, ...]:
    """Return the next `count` tokens after one."""
    tokens: list[int] = []
    for _ in range(count):
        token = following(token)
        tokens.append(token)
    return tuple(tokens)


def point_mass(*tokens: int) -> Draft:
    """Return a draft whose q̂ is a point mass at each token."""
    one = torch.ones(1, dtype=torch.int64)
    return Draft(tokens, tuple(SparseProbs(torch.tensor([token]), one) for token in tokens))


def chunk_after(prefix: Sequence[int], *tokens: int, base_len: int | None = None) -> DraftTokens:
    """Return drafts that continue the first `base_len` tokens of `prefix`, by default all of them."""
    base = len(prefix) if base_len is None else base_len
    return DraftTokens("s", 1, base, PrefixHash(prefix[:base]).value, point_mass(*tokens))


def make_call(**changes: object) -> GenerationCall:
    """Return a small call."""
    values: dict[str, object] = {
        "session_id": "s",
        "epoch": 1,
        "tokens": (1, 2, 3),
        "prompt_len": 3,
        "sampling": GREEDY,
        "max_tokens": 8,
        "stop_token_ids": (),
        "speculation": Speculation(Mode.REJECTION, 3),
    }
    return GenerationCall(**(values | changes))  # type: ignore[arg-type]


def make_row(
    kv_name: str,
    tokens: Sequence[int] = (1, 2, 3),
    goal: int | None = None,
    draft: Draft = NO_DRAFT,
    rank: float = 0.0,
    limit: int = 1000,
    **changes: object,
) -> Row:
    """Return a row to judge, or a prefill if `goal` is less than all tokens. `changes` apply to its call."""
    return Row(make_call(**changes), kv_name, rank, limit, tokens, len(tokens) if goal is None else goal, draft)


class FixedGamma:
    """A controller with a constant γ."""

    def __init__(self, value: int) -> None:
        self.value = value
        self.closed = False
        self.seconds: list[bool | None] = []

    def close(self) -> None:
        self.closed = True

    def observe_second(self, *, kept: bool | None) -> None:
        self.seconds.append(kept)

    @property
    def drafts(self) -> bool:
        return self.value > 0

    def gamma(self) -> int:
        return self.value

    def observe(self, drafted: int, accepted: int, overlaps: Sequence[float] = ()) -> None:
        """Ignore the observation."""

    def speedup(self) -> Speedup:
        return Speedup(1.5, 1.25)

    def detail(self, gamma: int, room: int) -> RoundDetail:
        return RoundDetail(min(gamma, room), "fixed", 0.5)


def make_speculation(gamma_max: int = 4, groups: int | Literal["auto"] = 1) -> BatchSpeculation:
    """Return a controller of drafters that report no times."""
    return BatchSpeculation(gamma_max, 512, lambda: DrafterTimes(None), groups=groups)


def make_metrics() -> VerifierMetrics:
    """Return metrics with a registry of their own."""
    return VerifierMetrics(CollectorRegistry())


class TableEngine:
    """Predicts `following(token)` with certainty, and fails for sessions that a test poisons."""

    vocab_size = VOCABULARY
    context_length = 1000
    tokenizer_hash = "table"

    def __init__(self, room: int = 1000) -> None:
        self.room = room
        self.limits: dict[str, int] = {}
        self.held: dict[str, int] = {}
        """Tokens of memory per session."""
        self.kv: dict[str, list[int]] = {}
        self.batches: list[list[Chunk]] = []
        self.poisoned: set[str] = set()
        self.nan: set[str] = set()
        self.inadmissible: set[str] = set()

    @property
    def memory(self) -> KvMemory:
        return KvMemory(self.room, sum(self.held.values()), 0)

    def can_ever_admit(self, limit: int) -> bool:
        return limit <= self.room

    def admit(self, session: str, limit: int, tokens: Sequence[int] = (), domain: str = "") -> bool:
        if session in self.inadmissible:
            raise MemoryError(session)
        if sum(self.held.values()) + len(tokens) > self.room:
            return False
        self.limits[session], self.held[session], self.kv[session] = limit, len(tokens), []
        return True

    def reserve(self, session: str, length: int) -> bool:
        assert length <= self.limits[session]
        if sum(self.held.values()) - self.held[session] + length > self.room:
            return False
        self.held[session] = max(self.held[session], length)
        return True

    def release(self, session: str) -> None:
        del self.limits[session], self.held[session], self.kv[session]

    def length(self, session: str) -> int:
        return len(self.kv[session])

    def truncate(self, session: str, length: int) -> None:
        assert length <= len(self.kv[session])
        del self.kv[session][length:]

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        self.batches.append(list(chunks))
        if self.poisoned & {chunk.session for chunk in chunks}:
            raise RuntimeError("poisoned")
        rows: list[Tensor] = []
        for chunk in chunks:
            self.kv[chunk.session] += chunk.tokens
            assert len(self.kv[chunk.session]) <= self.limits[chunk.session]
            for token in chunk.tokens[len(chunk.tokens) - chunk.logits :]:
                row = torch.zeros(VOCABULARY)
                row[following(token)] = 30.0
                rows.append(row * torch.nan if chunk.session in self.nan else row)
        return torch.stack(rows) if rows else torch.zeros(0, VOCABULARY)


class DirectTarget:
    """The loop of a target that judges a row as soon as it is submitted, and records its calls.

    `advance` concludes the rows with their outcomes, as after a pass.
    """

    def __init__(self) -> None:
        self.rows: list[Row] = []
        """Copies of the rows, with their tokens at the time of the call."""
        self.prefills: list[int] = []
        self.admission: Row | None = None
        self.holds_kv = False
        self.held = 0
        """Number of tokens with KV when a sequence is admitted."""
        self.refuses_drafts = False
        self.room = 1000
        """Maximum number of drafts in a pass."""
        self.drafts_first = True
        self.running = 0
        """Number of other sequences."""
        self.expecting = 0
        """Number of times that a pass waited for a draft."""
        self.ahead = False
        """Whether the next round of each sequence has begun before its request."""
        self.pending: list[tuple[EngineSequence, Outcome | None]] = []
        self.waiting: list[EngineSequence] = []
        """Sequences that wait for a draft."""

    def enter(self, sequence: EngineSequence) -> None:
        self.admission, self.holds_kv = sequence.row, True
        sequence.admitted(self.held)

    def leave(self, sequence: EngineSequence) -> None:
        self.holds_kv = False
        self.pending = [each for each in self.pending if each[0] is not sequence]
        self.waiting = [each for each in self.waiting if each is not sequence]

    def runs_ahead_of(self, kv_name: str) -> bool:
        return self.ahead

    def await_draft(self, sequence: EngineSequence, gamma: int) -> None:
        self.expecting += sequence.drafts.gathers is not Gathers.NOT
        sequence.drafts.request(gamma, lambda: None)
        self.waiting.append(sequence)
        self._look()

    def submit(self, sequence: EngineSequence, row: Row) -> None:
        if row.goal < len(row.tokens):
            self.prefills.append(row.goal)
            self.pending.append((sequence, None))
        else:
            self.pending.append((sequence, self.judge(row)))

    def advance(self) -> bool:
        """Conclude pending rows, then report them. Return whether there were any, or a sequence waits for a draft."""
        for sequence in self.waiting:
            if sequence.drafts.gathers is Gathers.NOT:  # the next pass begins
                sequence.drafts.stop_waiting()
        self._look()
        done, self.pending = self.pending, []
        for sequence, outcome in done:
            sequence.conclude(outcome)
        for sequence, _ in done:
            sequence.tell()
        return bool(done or self.waiting)

    def _look(self) -> None:
        waiting, self.waiting = self.waiting, []
        for sequence in waiting:
            if (proposal := sequence.drafts.proposal()) is None:
                self.waiting.append(sequence)
            else:
                sequence.drafted(proposal)

    def judge(self, row: Row) -> Outcome:
        self.rows.append(replace(row, tokens=tuple(row.tokens)))
        offered = row.draft.tokens[: self.room]
        drafts = () if self.refuses_drafts else offered
        truth = continuation(row.tokens[-1], len(drafts) + 1)
        accepted = next((i for i, token in enumerate(drafts) if token != truth[i]), len(drafts))
        verdict = Verdict(truth[: accepted + 1], accepted, len(drafts))
        return Outcome(verdict, started=time.perf_counter() + 0.1, seconds=0.2, offered=len(offered))


class Collected:
    """A reader that keeps its rounds and errors."""

    def __init__(self, seen: Callable[[Round], None] = lambda done: None) -> None:
        """`seen` is called with each round."""
        self.rounds: list[Round] = []
        self.errors: list[Exception] = []
        self._seen = seen

    def add(self, done: Round) -> None:
        self.rounds.append(done)
        self._seen(done)

    def failed(self, error: Exception) -> None:
        self.errors.append(error)


class WrittenDrafts:
    """Returns the drafts written by a test, one per round, and then none, with `reason`."""

    gathers = Gathers.ALWAYS
    guesses = False

    def __init__(self, *drafts: Draft, reason: Fallback = Fallback.NONE) -> None:
        self.drafts = list(drafts)
        self.reason = reason
        self.asked: list[int] = []
        self.commits: list[tuple[tuple[int, ...], int, int]] = []
        self.distrusted = 0
        self.closed = 0

    def begin(self, gamma: int) -> None:
        self.begun = gamma

    def stop_waiting(self) -> None:
        pass

    def guess(self) -> Proposal:
        return Proposal()

    def request(self, gamma: int, changed: Callable[[], object]) -> None:
        self.asked.append(gamma)

    def proposal(self) -> Proposal:
        gamma = self.asked[-1]
        draft = self.drafts.pop(0).cut(gamma) if self.drafts else NO_DRAFT
        reason = Fallback.NONE if draft.tokens or not gamma else self.reason
        return Proposal(draft, reason, 0.3, gamma if draft.tokens else 0)

    def declined(self) -> Fallback:
        return Fallback.NOT_WORTH_IT

    def commit(self, tokens: Sequence[int], judged: int, gamma: int) -> None:
        self.commits.append((tuple(tokens), judged, gamma))

    def distrust(self) -> None:
        self.distrusted += 1

    def close(self) -> None:
        self.closed += 1


def make_link(registry: CollectorRegistry | None = None, address: str = "d:1") -> DrafterLink:
    """Return a link without a connection."""
    return DrafterLink(address, 1.0, VerifierMetrics(registry or CollectorRegistry()))
