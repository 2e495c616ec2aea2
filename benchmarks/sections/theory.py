"""Predicted against measured speed-up, for several γ and drafters, as Table 4 of Leviathan et al. does."""

import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.drafters import Candidate, candidates
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
    costs = _pass_cost(target)
    with TemporaryDirectory() as folder:
        guessers = list(candidates(scale.pair, Path(folder)))
    rows = [row for heat in (0.0, 1.0) for guesser in guessers for row in _rows(scale, target, guesser, heat, costs)]
    figures = [Figure("theory", f"{row.drafter}, γ={row.gamma}", row.text()) for row in rows]
    curves = {
        f"predicted, {name}": [(float(r.gamma), r.predicted) for r in rows if r.drafter == name]
        for name in {r.drafter for r in rows}
    }
    return Report("theory", figures, curves)


def _rows(
    scale: Scale, target: Engine, guesser: Candidate, temperature: float, costs: tuple[float, float]
) -> list[Prediction]:
    step, beta = costs
    local = Local(target, guesser.drafter)
    peers: dict[str, Peer] = {str(gamma): Fixed(local, gamma) for gamma in (0, *scale.gammas)}
    runs = interleave(peers, scale.pair.asks(scale.asks, scale.prompt, scale.tokens, temperature), scale.repeats)
    name = f"{guesser.name} at temperature {temperature:g}"
    c = guesser.drafter.info.step_seconds / step
    return [_row(name, gamma, (runs[str(gamma)], runs["0"]), (c, beta, guesser.c_ops)) for gamma in scale.gammas]


def _row(name: str, gamma: int, sides: tuple[list[Run], list[Run]], costs: tuple[float, float, float]) -> Prediction:
    runs, plain = sides
    c, beta, c_ops = costs
    alpha = acceptance(sum(run.rounds for run in runs), sum(run.accepted for run in runs), gamma)
    measured = paired([run.speed for run in runs], [run.speed for run in plain])
    predicted = speedup(alpha, gamma, c, 0.0, beta)
    return Prediction(name, gamma, alpha, c, beta, predicted, str(measured), operations_factor(alpha, gamma, c_ops))


def _pass_cost(engine: Engine) -> tuple[float, float]:
    """Seconds of a one-token pass, and β: the cost of one more token, in such passes."""
    engine.admit("cost", 128)
    engine.reserve("cost", 128)
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
