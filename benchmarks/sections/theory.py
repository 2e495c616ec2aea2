"""Predicted against measured speed-up, for several γ and drafters, as Table 4 of Leviathan et al. does."""

import time
from dataclasses import dataclass
from statistics import median

from benchmarks.drafters import load_drafter
from benchmarks.local import Local, load
from benchmarks.peers import Fixed, interleave
from benchmarks.results import Figure, Report
from benchmarks.run import Peer, Run
from benchmarks.sections.scale import Scale
from benchmarks.statistics import paired, slope
from benchmarks.theory import acceptance, expected_tokens, operations_factor, speedup
from specdec.engine import Chunk, Engine

_STEPS = 24


@dataclass(frozen=True, slots=True)
class Prediction:
    """One row of the table."""

    drafter: str
    gamma: int
    alpha: float
    c: float
    beta: float
    predicted: float
    measured: str
    operations: float

    def text(self) -> str:
        """The row's figures."""
        return (
            f"α {self.alpha:.2f}, c {self.c:.2f}, β {self.beta:.2f}, E {expected_tokens(self.alpha, self.gamma):.2f}, "
            f"predicted {self.predicted:.2f}, measured {self.measured}, operations × {self.operations:.2f}"
        )


def measure(scale: Scale) -> Report:
    """In one process, one thread, so r = 0: what is left is the formula's own α, c and β."""
    target = load(scale.pair.target)
    step, beta = _pass_cost(target)
    rows = [
        row
        for temperature in (0.0, 1.0)
        for kind, folder in _drafters(scale)
        for row in _rows(scale, target, kind, temperature, (step, beta))
    ]
    figures = [Figure("theory", f"{row.drafter}, γ={row.gamma}", row.text()) for row in rows]
    curves = {
        f"predicted, {name}": [(float(r.gamma), r.predicted) for r in rows if r.drafter == name]
        for name in {r.drafter for r in rows}
    }
    return Report("theory", figures, curves)


def _rows(scale: Scale, target: Engine, kind: str, temperature: float, costs: tuple[float, float]) -> list[Prediction]:
    drafter = load_drafter(kind, scale.pair.drafter)
    c, beta = drafter.info.step_seconds / costs[0], costs[1]
    local = Local(target, drafter)
    peers: dict[str, Peer] = {str(gamma): Fixed(local, gamma) for gamma in (0, *scale.gammas)}
    runs = interleave(peers, scale.pair.asks(scale.asks, scale.prompt, scale.tokens, temperature), scale.repeats)
    name = f"{kind} at temperature {temperature:g}"
    return [_row(name, gamma, runs[str(gamma)], runs["0"], c, beta) for gamma in scale.gammas]


def _row(name: str, gamma: int, runs: list[Run], plain: list[Run], c: float, beta: float) -> Prediction:
    alpha = acceptance(sum(r.rounds for r in runs), sum(r.drafted for r in runs), sum(r.accepted for r in runs), gamma)
    measured = paired([run.speed for run in runs], [run.speed for run in plain])
    predicted = speedup(alpha, gamma, c, 0.0, beta)
    return Prediction(name, gamma, alpha, c, beta, predicted, str(measured), operations_factor(alpha, gamma, c))


def _pass_cost(engine: Engine) -> tuple[float, float]:
    """Seconds of a one-token pass, and β: the cost of one more token, in such passes."""
    engine.admit("cost", 128)
    engine.forward([Chunk("cost", [5] * 64, 1)])
    seconds = {count: list[float]() for count in range(1, 9)}
    for _ in range(_STEPS):
        for count, times in seconds.items():
            started = time.perf_counter()
            engine.forward([Chunk("cost", [7] * count, count)])
            times.append(time.perf_counter() - started)
            engine.truncate("cost", 64)
    engine.release("cost")
    medians = [median(times) for times in seconds.values()]
    _, steep = slope(list(map(float, seconds)), medians)
    return medians[0], max(steep, 0.0) / medians[0]
