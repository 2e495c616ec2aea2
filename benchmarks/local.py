"""The in-process engine: target and drafter on one thread, one after the other, without services."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.run import Ask, Run, gaps_of
from drafter_service.sessions.draft_session import DraftSession
from drafter_service.sessions.drafter import DraftedRun, DraftedToken, Drafter, ScheduledSession
from specdec.engine import NativeEngine
from specdec.errors import InternalError
from specdec.rules.draft import NO_DRAFT, Draft, Verdict
from specdec.rules.speculation import Mode, Speculation
from specdec.sampling.params import SamplingParams
from specdec.trees.tree import TreeDraft
from specdec.wire.generation import GenerationCall
from specdec.wire.session import Commit, Open
from verifier_service.backends.batch_plan import Row, ScheduledChunk
from verifier_service.backends.target_pass import verify_batch

KV_BYTES = 2**28
_NAME = "bench"


def load(path: Path, dtype: str = "float32", threads: int = 1, *, compiled: bool = False) -> NativeEngine:
    """Load an engine as the services do."""
    return NativeEngine.load(path, dtype=dtype, device="auto", kv_bytes=KV_BYTES, threads=threads, compiled=compiled)


def target_row(name: str, ask: Ask, tokens: tuple[int, ...], draft: Draft | TreeDraft = NO_DRAFT) -> Row:
    """Return a row of the target's batch: a draft after `tokens`, which begin with the ask's prompt."""
    call = GenerationCall(
        tokens=ask.prompt,
        prompt_len=len(ask.prompt),
        sampling=SamplingParams(temperature=ask.temperature, seed=ask.seed),
        max_tokens=ask.tokens,
        stop_token_ids=(),
        speculation=Speculation(Mode.REJECTION),
    )
    limit = len(ask.prompt) + ask.tokens
    return Row(call, name, rank=0.0, limit=limit, tokens=tokens, goal=len(tokens), draft=draft)


class Local:
    """Plain and speculative decoding of one sequence at a time."""

    def __init__(
        self, target: NativeEngine, drafter: Drafter | None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """Set the clock, which returns seconds of wall time or of this process's CPU time."""
        self._target = target
        self._drafter = drafter
        self._clock = clock

    def generate(self, ask: Ask) -> Run:
        """Generate. Without a drafter, or at γ = 0, decode plainly."""
        limit = len(ask.prompt) + ask.tokens
        if not (self._target.admit(_NAME, limit) and self._target.reserve(_NAME, limit)):
            raise InternalError(f"no room for {limit} tokens")
        try:
            if self._drafter is None or not ask.gamma:
                return self._loop(ask, None)
            self._drafter.sequences.admit(_NAME, limit)
            self._drafter.sequences.reserve(_NAME, limit)
            try:
                return self._loop(ask, Drafting(self._drafter, ask, ask.gamma))
            finally:
                self._drafter.sequences.release(_NAME)
        finally:
            self._target.release(_NAME)

    def _loop(self, ask: Ask, drafting: "Drafting | None") -> Run:
        tokens = list(ask.prompt)
        limit, computed, rejected, opening = len(tokens) + ask.tokens, 0, 0, 0
        times, verdicts = [self._clock()], list[tuple[int, int]]()
        while len(tokens) < limit:
            wanted = min(drafting.gamma, limit - len(tokens) - 1) if drafting else 0
            draft = drafting.draft() if drafting else NO_DRAFT
            row = target_row(_NAME, ask, tuple(tokens), draft)
            (verdict,) = verify_batch(self._target, [ScheduledChunk(row, computed, len(tokens) - computed)])
            if not isinstance(verdict, Verdict):
                raise InternalError("the pass failed")
            base_len, computed = len(tokens), len(tokens) + verdict.accepted
            tokens += verdict.tokens
            verdicts.append((len(draft.tokens), verdict.accepted))
            rejected += verdict.accepted < wanted
            opening = opening or len(verdict.tokens)
            if drafting:
                drafting.commit(base_len, verdict.tokens)
            times.append(self._clock())
            if not set(ask.stop).isdisjoint(verdict.tokens):
                break
        return Run(
            tuple(tokens[len(ask.prompt) : limit]), times[-1] - times[0], times[1] - times[0], opening, len(verdicts),
            sum(accepted for _, accepted in verdicts), rejected, gaps_of(times[1:]), tuple(verdicts),
        )  # fmt: skip


class Drafting:
    """The drafter's side of one generation, without a connection."""

    def __init__(self, drafter: Drafter, ask: Ask, gamma: int, name: str = _NAME) -> None:
        """Open the sequence, called `name` at the drafter."""
        self._drafter = drafter
        self._limit = len(ask.prompt) + ask.tokens
        self.gamma = gamma
        params = SamplingParams(temperature=ask.temperature, seed=ask.seed)
        first = min(gamma, ask.tokens - 1)
        opened = Open(name, 1, ask.prompt, len(ask.prompt), params, Mode.REJECTION, first, self._limit)
        self.session = DraftSession(name, opened, drafter.info.context_length)

    def draft(self) -> Draft:
        """Return the tokens of one round and their distributions."""
        (draft,) = draft_together(self._drafter, [self])
        return draft

    def commit(self, base_len: int, tokens: Sequence[int]) -> None:
        """Apply a verdict."""
        left = self._limit - base_len - len(tokens)
        if left > 0:
            name = self.session.key
            message = Commit(name, 1, base_len, tuple(tokens), min(self.gamma, left - 1))
            sequences = self._drafter.sequences
            sequences.truncate(name, min(self.session.commit(message), sequences.length(name)))


def draft_together(drafter: Drafter, generations: Sequence[Drafting]) -> list[Draft]:
    """Return the drafts of one round of each generation. They share the drafter's steps."""
    drawn: dict[DraftSession, list[DraftedToken]] = {each.session: [] for each in generations}
    waiting = [session for session in drawn if session.verifier_waits]
    while waiting:
        batch = [ScheduledSession(each, len(each) - drafter.sequences.length(each.key)) for each in waiting]
        runs = [
            (result.session, result.tokens if isinstance(result, DraftedRun) else [result])
            for result in drafter.step(batch)
            if isinstance(result, DraftedToken | DraftedRun)
        ]
        for session, tokens in runs:
            for each in tokens:
                session.extend(each.token)
                drawn[session].append(each)
        waiting = [session for session, _ in runs if session.verifier_waits]
    return [
        Draft(tuple(one.token for one in tokens), tuple(one.probs for one in tokens if one.probs is not None))
        for tokens in drawn.values()
    ]
