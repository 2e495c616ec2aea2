"""Rounds of the pair in this process, with data that no service reports: each draft's probability to be kept."""

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from benchmarks.exactness.pair import Pair
from specdec.engine import Chunk, NativeEngine
from specdec.rules.draft import Draft, SparseProbs, Verdict
from specdec.rules.lenience import lenient_greedy
from specdec.rules.proposal import propose
from specdec.rules.speculation import Mode
from specdec.rules.verification import verify
from specdec.sampling.distribution import History, probabilities
from specdec.sampling.params import SamplingParams

SUPPORT = 64
REPLAYS = 60
"""Verdicts of one session that are timed separately."""


@dataclass(frozen=True)
class Setting:
    """One cell of a table."""

    mode: Mode
    temperature: float
    gamma: int
    lenience: float = 1.0


@dataclass(frozen=True)
class Measured:
    """Results of one setting."""

    chance: float
    """α as the mean probability to be kept, Σ min(p, q̂) under the token rule, over judged drafts. NaN if undefined."""
    share: float
    """α as accepted / (accepted + rejections)."""
    share_error: float
    """Standard error of `share`, with sessions taken as independent."""
    z: float
    """(accepted - Σ chances) in standard errors of that sum. Within ±3 if both estimate the same α."""
    tokens: float
    """Tokens per round."""
    tokens_error: float
    verdict_us: float
    """Median microseconds of one session's verdict."""


@dataclass
class Trace:
    """One session's tokens and rounds."""

    name: str
    seed: int
    tokens: list[int]
    start: int = 0
    draft: Draft = field(default_factory=Draft)
    accepted: int = 0
    rejected: int = 0
    rounds: int = 0
    chances: list[float] = field(default_factory=list)

    def take(self, verdict: Verdict, chances: Sequence[float]) -> None:
        """Commit a verdict. Only drafts up to the first rejection were judged."""
        rejected = verdict.accepted < verdict.drafted
        self.tokens += verdict.tokens
        self.accepted += verdict.accepted
        self.rejected += rejected
        self.rounds += 1
        self.chances += chances[: verdict.accepted + rejected]


def measure(pair: Pair, setting: Setting, prompts: Sequence[tuple[int, ...]], length: int) -> Measured:
    """Generate `length` tokens after every prompt, all prompts in one batch. Session i has seed i."""
    traces = [Trace(f"{setting}/{seed}", seed, list(prompt)) for seed, prompt in enumerate(prompts)]
    params = SamplingParams(temperature=setting.temperature)
    seconds: list[float] = []
    for trace in traces:
        for engine in (pair.target, pair.drafter):
            limit = len(trace.tokens) + length + 2 * setting.gamma + 2
            engine.admit(trace.name, limit)
            engine.reserve(trace.name, limit)
    while live := [trace for trace in traces if len(trace.tokens) < len(prompts[0]) + length]:
        _draft(pair.drafter, setting, params, live)
        p, logits = _target(pair.target, params, live)
        for trace, verdict, chances in zip(live, *_judge(setting, params, live, p, logits, seconds), strict=True):
            trace.take(verdict, chances)
            for engine in (pair.target, pair.drafter):
                engine.truncate(trace.name, min(engine.length(trace.name), len(trace.tokens) - 1))
    for trace in traces:
        pair.target.release(trace.name)
        pair.drafter.release(trace.name)
    return _summary(traces, seconds)


def _draft(engine: NativeEngine, setting: Setting, params: SamplingParams, live: Sequence[Trace]) -> None:
    """Draft γ tokens for every session, one step after another."""
    for trace in live:
        trace.start, trace.draft = len(trace.tokens), Draft()
    for _ in range(setting.gamma):
        chunks = [
            Chunk(each.name, [*each.tokens, *each.draft.tokens][engine.length(each.name) :], logits=1) for each in live
        ]
        q = probabilities(engine.forward(chunks), [params] * len(live), [History()] * len(live))
        at = [len(each.tokens) + len(each.draft.tokens) for each in live]
        seeds, starts = [each.seed for each in live], [each.start for each in live]
        tokens, probs = propose(setting.mode, q, seeds, at, SUPPORT, starts)
        for row, (each, token) in enumerate(zip(live, tokens, strict=True)):
            each.draft = Draft((*each.draft.tokens, token), each.draft.probs + tuple(probs[row : row + 1]))


def _target(engine: NativeEngine, params: SamplingParams, live: Sequence[Trace]) -> tuple[Tensor, Tensor]:
    """Return p and the logits, [Σ(γ + 1), V]."""
    chunks = [
        Chunk(
            each.name,
            [*each.tokens, *each.draft.tokens][engine.length(each.name) :],
            logits=len(each.draft.tokens) + 1,
        )
        for each in live
    ]
    logits = engine.forward(chunks)
    return probabilities(logits, [params] * len(logits), [History()] * len(logits)), logits


def _judge(
    setting: Setting, params: SamplingParams, live: Sequence[Trace], p: Tensor, logits: Tensor, seconds: list[float]
) -> tuple[list[Verdict], list[list[float]]]:
    """Return the verdicts, and the probability of each judged draft to be kept."""
    drafts, count = [each.draft for each in live], len(live)
    ell = [setting.lenience] * count
    exact = p
    if setting.lenience < 1.0:
        p = lenient_greedy(p, logits, [params] * len(p), [History()] * len(p), drafts, ell)
    verdicts = verify(setting.mode, p, drafts, [each.seed for each in live], [each.start for each in live], ell)
    if len(seconds) < REPLAYS:
        started = time.perf_counter()
        verify(setting.mode, p[: setting.gamma + 1], drafts[:1], [live[0].seed], [live[0].start], ell[:1])
        seconds.append(time.perf_counter() - started)
    if setting.mode is not Mode.REJECTION or setting.lenience < 1.0:
        return verdicts, [[] for _ in live]
    chances = [
        [overlap(row, law) for row, law in zip(mine, draft.probs, strict=False)]
        for mine, draft in zip(exact.view(count, setting.gamma + 1, -1), drafts, strict=True)
    ]
    return verdicts, chances


def overlap(p: Tensor, q: SparseProbs) -> float:
    """Return Σ min(p, q̂) of one position, the probability that token rejection keeps a draft from q̂."""
    share = q.weights.double() / q.weights.sum()
    return float(torch.minimum(p[q.ids].double() / p.sum(dtype=torch.float64), share).sum())


def _summary(traces: Sequence[Trace], seconds: Sequence[float]) -> Measured:
    accepted = sum(trace.accepted for trace in traces)
    chances = [chance for trace in traces for chance in trace.chances]
    variance = sum(chance * (1 - chance) for chance in chances)
    share, share_error = _ratio([(t.accepted, t.accepted + t.rejected) for t in traces])
    tokens, tokens_error = _ratio([(t.accepted + t.rounds, t.rounds) for t in traces])
    return Measured(
        chance=statistics.fmean(chances) if chances else math.nan,
        share=share,
        share_error=share_error,
        z=(accepted - sum(chances)) / variance**0.5 if variance else 0.0 if chances else math.nan,
        tokens=tokens,
        tokens_error=tokens_error,
        verdict_us=statistics.median(seconds) * 1e6,
    )


def _ratio(pairs: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """Return Σa / Σb over sessions and its standard error by the delta method."""
    total = sum(b for _, b in pairs)
    ratio = sum(a for a, _ in pairs) / total
    spread = sum((a - ratio * b) ** 2 for a, b in pairs) * len(pairs) / max(1, len(pairs) - 1)
    return ratio, spread**0.5 / total
