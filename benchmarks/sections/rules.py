"""Cost of a round's mathematics with a large vocabulary, on one thread and without a model."""

import time
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.reports.results import Figure, Goal, Report, Table
from benchmarks.reports.statistics import spread
from benchmarks.sections.lab import Lab
from specdec.rules.draft import Draft
from specdec.rules.proposal import propose
from specdec.rules.speculation import Mode
from specdec.rules.verification import verify
from specdec.sampling.distribution import History, probabilities
from specdec.sampling.params import SamplingParams

_VOCABULARY = 151_936
"""Vocabulary of the Qwen family, the largest in common use."""
_GAMMA = 5
_SUPPORT = 64
_PROMPT = 8192
_SPREADS = {"peaked": 3.0, "flat": 1.5}
"""Standard deviations of the logits. A nucleus of 0.95 has about 2,000 and 40,000 ids."""
_PARAMS = {
    "temperature 1": SamplingParams(),
    "temperature 0": SamplingParams(temperature=0.0),
    "top-p 0.95": SamplingParams(top_p=0.95),
    "top-k 50": SamplingParams(top_k=50),
    "top-k 1000, top-p 0.95": SamplingParams(top_k=1000, top_p=0.95),
    "min-p 0.05": SamplingParams(min_p=0.05),
    "repetition penalty, prompt of 8,192": SamplingParams(repetition_penalty=1.1),
}
_GOAL = Goal(2.0, at_most=True)
_TEXT = """\
Milliseconds a row, on one thread, with a vocabulary of 151,936 ids and γ = 5, so a session has six rows: first the
one function from logits to a distribution, then the verdict of each mode on distributions that are there. The
logits are random, peaked or flat. What is slower than 2 ms a row is marked in the figures."""


def measure(lab: Lab) -> Report:
    """Time every parameter and every mode, for one session and for many."""
    wide, turns = (2048, 1) if lab.scale.repeats == 1 else (_VOCABULARY, 5)
    sessions = (1, max(lab.scale.sessions))
    rows, slowest = list[list[str]](), 0.0
    for shape, deviation in _SPREADS.items():
        for name, work in _works(wide, deviation):
            costs = [_cost(work(count), count, turns) for count in sessions]
            rows.append([shape, name, *(f"{cost:.2f}" for cost in costs)])
            slowest = max(slowest, *costs)
    head = ("logits", "what", *(f"{count} session{'s' * (count > 1)}, ms a row" for count in sessions))
    worst = Figure("slowest, ms a row", f"{slowest:.2f}", str(_GOAL), _GOAL.verdict(slowest))
    return Report("rules", _TEXT, [worst], [Table(head, rows)])


def _works(wide: int, deviation: float) -> list[tuple[str, Callable[[int], Callable[[], object]]]]:
    """Return, for each row of the table, the function that makes the work for a number of sessions."""
    made = [
        (name, lambda count, params=params: _distributions(wide, deviation, count, params))
        for name, params in _PARAMS.items()
    ]
    judged = [
        (f"verdict, {mode}", lambda count, mode=mode: _verdicts(wide, deviation, count, mode))
        for mode in (Mode.REJECTION, Mode.BLOCK, Mode.COUPLED)
    ]
    return [*made, *judged]


def _logits(wide: int, deviation: float, sessions: int) -> Tensor:
    return torch.randn(sessions * (_GAMMA + 1), wide, generator=torch.Generator().manual_seed(1)) * deviation


def _distributions(wide: int, deviation: float, sessions: int, params: SamplingParams) -> Callable[[], object]:
    logits = _logits(wide, deviation, sessions)
    prompts = (
        [tuple(range(index, index + _PROMPT)) for index in range(sessions)] if wide > 2 * _PROMPT else [(0,)] * sessions
    )
    histories = [History(prompt, tuple(range(200 + row))) for prompt in prompts for row in range(_GAMMA + 1)]
    return lambda: probabilities(logits, [params] * len(logits), histories)


def _verdicts(wide: int, deviation: float, sessions: int, mode: Mode) -> Callable[[], object]:
    p = _logits(wide, deviation, sessions).softmax(-1)
    drafts, seeds, positions = list[Draft](), list(range(sessions)), [100] * sessions
    for session in range(sessions):
        q = p[session * (_GAMMA + 1) :][:_GAMMA]
        places = list(range(100, 100 + _GAMMA))
        tokens, laws = propose(mode, q, [session] * _GAMMA, places, _SUPPORT, starts=[100] * _GAMMA)
        drafts.append(Draft(tuple(tokens), tuple(laws)))
    return lambda: verify(mode, p, drafts, seeds, positions)


def _cost(work: Callable[[], object], sessions: int, turns: int) -> float:
    """Return the median milliseconds per row."""
    work()
    times = list[float]()
    for _ in range(turns):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return 1000 * spread(times).value / (sessions * (_GAMMA + 1))
