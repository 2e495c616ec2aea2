"""The costs in the formulas, each measured separately on the code that a round calls, in turn with the others."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.local import Drafting, target_row
from benchmarks.reports.statistics import slope
from benchmarks.run import Ask
from drafter_service.sessions.drafter import Drafter
from specdec.engine import NativeEngine
from specdec.rules.draft import Draft
from verifier_service.backends.batch_plan import ScheduledChunk
from verifier_service.backends.target_pass import verify_batch

_NAME = "bench"
_MOST = 8


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs in seconds."""

    step: float
    """A plain round of the target."""
    more: float
    """One more token in the verification."""
    judging: float
    """Additional seconds of a round that has a draft, of any length."""
    draft: Mapping[str, float]
    """A drafted token, by drafter."""

    def in_steps(self, drafter: str, step: float | None = None, trip: float = 0.0) -> tuple[float, float, float]:
        """Return c, r and β in units of a plain round of `step` seconds. `trip` is the round trip to the drafter."""
        unit = step or self.step
        return self.draft[drafter] / unit, (self.judging + trip) / unit, self.more / unit


def measure(target: NativeEngine, drafters: Mapping[str, Drafter], ask: Ask, times: int) -> Costs:
    """Extend the ask's prompt `times` times by one token, and time everything at each length."""
    limit = len(ask.prompt) + ask.tokens
    sides = {name: _admitted(drafter, ask, limit) for name, drafter in drafters.items()}
    target.admit(_NAME, limit + _MOST)
    target.reserve(_NAME, limit + _MOST)
    verify_batch(target, [ScheduledChunk(target_row(_NAME, ask, ask.prompt), 0, len(ask.prompt))])
    tokens, passes = list(ask.prompt), {count: list[float]() for count in range(_MOST + 1)}
    drafting: dict[str, list[float]] = {name: [] for name in drafters}
    for _ in range(times):
        drafts = list[Draft]()
        for name, side in sides.items():
            started = time.perf_counter()
            drafts.append(side.draft())
            drafting[name].append((time.perf_counter() - started) / _MOST)
        _verify(target, ask, tokens, max(drafts, key=lambda draft: len(draft.tokens)), passes)
        tokens.append(_surprise(ask.prompt, drafts))
        for side in sides.values():
            side.commit(len(tokens) - 1, tokens[-1:])
    target.release(_NAME)
    for drafter in drafters.values():
        drafter.sequences.release(_NAME)
    medians = {count: median(seconds) for count, seconds in passes.items() if seconds}
    counts = [count for count in medians if count]
    base, more = slope([float(count) for count in counts], [medians[count] for count in counts])
    spent = {name: median(seconds[1:]) for name, seconds in drafting.items()}
    return Costs(medians[0], max(more, 0.0), max(base - medians[0], 0.0), spent)


def _admitted(drafter: Drafter, ask: Ask, limit: int) -> Drafting:
    drafter.sequences.admit(_NAME, limit + _MOST)
    drafter.sequences.reserve(_NAME, limit + _MOST)
    return Drafting(drafter, ask, _MOST)


def _surprise(known: Sequence[int], drafts: Sequence[Draft]) -> int:
    """Return a token with which no draft begins, so that all drafters draft anew."""
    guessed = {draft.tokens[0] for draft in drafts if draft.tokens}
    return next(token for token in known if token not in guessed)


def _verify(
    target: NativeEngine, ask: Ask, tokens: Sequence[int], draft: Draft, passes: Mapping[int, list[float]]
) -> None:
    """Time a verdict on each prefix of the draft, the empty one last."""
    before = len(tokens) - 1
    for count in range(len(draft.tokens), -1, -1):
        row = target_row(_NAME, ask, tuple(tokens), draft.cut(count))
        target.truncate(_NAME, before)
        started = time.perf_counter()
        verify_batch(target, [ScheduledChunk(row, before, 1)])
        passes[count].append(time.perf_counter() - started)
