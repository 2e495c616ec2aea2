"""Gain of each controller of the draft length, against fixed lengths and against an oracle bound."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.reports.results import Figure, Report, Table
from benchmarks.reports.statistics import Ratio, paired
from benchmarks.run import Ask, at_temperature
from benchmarks.sections.lab import Lab
from benchmarks.systems.stack import Stack
from benchmarks.theory import oracle
from specdec.planning.gamma_policy import GammaPolicy, PolicyKind

_TEXT = """\
Every controller relative to plain decoding, in tokens per second. Slices of {seconds:g} s take turns, and count once
the verifier has seen the load: {streams} streams, each of which asks again when its answer of {tokens} tokens has
ended. "Easy" are the held-out texts whose greedy drafts were accepted most often, "hard" those with the fewest. "Mixed"
has half of its streams at temperature 0 and half at 1. The bound is that of Leviathan et al. (arXiv 2211.17192, §3.5):
each round drafts exactly what will be accepted, at the measured acceptance and costs, without drafting ahead. Drafted
is the number of drafts for each token of the output."""
_HEAD = ("code", "temperature", "controller", "speed / plain", "of the best fixed γ", "α", "drafted", "bound")
_FIXED = "γ = "
_ORIGIN = "specdec_spec_tokens_by_origin_total/"
_ANSWERS = 8
"""Number of distinct answers for each stream in a slice."""
_WARM_UP = 2
"""Warm-up slices, run as one."""
CONTROLLERS: dict[str, GammaPolicy] = {
    "auto": GammaPolicy(),
    "auto, min_confidence 0.3": GammaPolicy(min_confidence=0.3),
    "optimal": GammaPolicy(PolicyKind.OPTIMAL),
    "egag": GammaPolicy(PolicyKind.EGAG, 1, 8, 0.5),
}
"""Controllers compared with fixed lengths."""


@dataclass(frozen=True, slots=True)
class Slice:
    """One run of the same generations with one controller."""

    speed: float
    """Tokens a second."""
    tokens: int
    drafted: float
    accepted: float
    rejected: float


def measure(lab: Lab) -> Report:
    """Measure each controller on easy and on hard code, at each temperature."""
    system, rows, shares = lab.system(), list[list[str]](), list[float]()
    asks = lab.asks()
    by_ease = sorted(asks, key=lambda ask: _acceptance(system, ask), reverse=True)
    half = max(1, len(by_ease) // 2)
    for code, texts in (("easy", by_ease[:half]), ("hard", by_ease[-half:])):
        for temperature in lab.scale.controller_temperatures:
            found = _ways(lab, system, at_temperature(texts, temperature))
            best = max(ratio.value for name, (ratio, _) in found.items() if name.startswith(_FIXED))
            costs = system.metrics("verifier")
            for name, (ratio, done) in found.items():
                rows.append([code, temperature, name, str(ratio), f"{ratio.value / best:.2f}", *_cells(done, costs)])
            shares.append(found["auto"][0].value / max(best, 1.0))
    reached = sum(share >= lab.scale.controller_goal for share in shares)
    figure = Figure(
        f"cells where auto ≥ {lab.scale.controller_goal} of the best γ, 0 among them", f"{reached} of {len(shares)}"
    )
    text = _TEXT.format(seconds=lab.scale.grid_seconds, streams=half, tokens=lab.scale.tokens)
    return Report("controllers", text, [figure], [Table(_HEAD, rows)])


def _ways(lab: Lab, system: Stack, texts: Sequence[Ask]) -> dict[str, tuple[Ratio, list[Slice]]]:
    """Return each controller's speed over plain decoding, and its slices. Answers of a stream differ by their seeds."""
    asks = [replace(ask, seed=ask.seed + again * lab.scale.asks) for again in range(_ANSWERS) for ask in texts]
    ways = {f"{_FIXED}{gamma}": [replace(ask, gamma=gamma) for ask in asks] for gamma in lab.scale.controller_gammas}
    ways |= {name: [replace(ask, policy=policy) for ask in asks] for name, policy in CONTROLLERS.items()}
    plain = [replace(ask, gamma=0) for ask in asks]
    done = {name: list[Slice]() for name in ways}
    base = list[float]()
    system.steady(asks, len(texts), _WARM_UP * lab.scale.grid_seconds)
    for _ in range(lab.scale.grid_turns):
        base.append(_slice(lab, system, plain, len(texts)).speed)
        for name, each in ways.items():
            done[name].append(_slice(lab, system, each, len(texts)))
    return {name: (paired([each.speed for each in slices], base), slices) for name, slices in done.items()}


def _slice(lab: Lab, system: Stack, asks: Sequence[Ask], streams: int) -> Slice:
    before = system.metrics("verifier")
    speed = system.steady(asks, streams, lab.scale.grid_seconds)
    more = {name: value - before.get(name, 0.0) for name, value in system.metrics("verifier").items()}
    tokens = int(sum(count for name, count in more.items() if name.startswith(_ORIGIN)))
    drafted, accepted = more["specdec_spec_draft_tokens_total"], more["specdec_spec_accepted_tokens_total"]
    rejected = more.get(_ORIGIN + "recovered", 0.0)
    return Slice(speed, tokens, drafted, accepted, rejected)


def _cells(done: Sequence[Slice], costs: dict[str, float]) -> list[str]:
    """Return the acceptance rate, the drafts per token, and the bound."""
    accepted, rejected = sum(each.accepted for each in done), sum(each.rejected for each in done)
    if not accepted + rejected:
        return ["", "0.00", ""]
    alpha = accepted / (accepted + rejected)
    drafted = sum(each.drafted for each in done) / sum(each.tokens for each in done)
    bound = oracle(alpha, costs["specdec_spec_cost_c"], costs["specdec_spec_cost_beta"])
    return [f"{alpha:.2f}", f"{drafted:.2f}", f"{bound:.2f}"]


def _acceptance(system: Stack, ask: Ask) -> float:
    run = system.generate(replace(ask, gamma=4))
    return run.accepted / max(1, len(run.tokens))
