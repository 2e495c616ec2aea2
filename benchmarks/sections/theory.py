"""Predicted against measured speed-up for several γ and drafters, like Table 4 of Leviathan et al."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from benchmarks import costs
from benchmarks.costs import Costs
from benchmarks.drafters import Candidate, candidates
from benchmarks.local import Local, load
from benchmarks.peers.turns import Fixed, Runs, interleave
from benchmarks.reports.results import Chart, Figure, Report, Table, figure
from benchmarks.reports.statistics import Ratio, paired, spread
from benchmarks.run import Ask, Peer
from benchmarks.sections.lab import Lab
from benchmarks.sections.scale import Scale
from benchmarks.systems.stack import Stack, running
from benchmarks.theory import ahead, expected_tokens, operations_factor, speedup

_TEMPERATURES = (0.0, 1.0)
_TEXT = """\
Leviathan et al. (arXiv 2211.17192): with acceptance α, drafts of γ tokens commit E = (1 - α^(γ+1)) / (1 - α) tokens
a round, and Theorem 3.8, with the costs of serving added, predicts the speed-up S = E / (1 + r + γ(c + β)) over
plain decoding. The unit is a plain round of the target; c is a drafted token, β one more token to verify, and r what
a round costs for having a draft at all: judging it and, through the stack, the way to the drafter and back. α is
accepted / (accepted + rejected) over all γ; c, β and r are measured by themselves, not taken from the runs they
predict. "Ahead" is S where the drafter drafts on while the target verifies, which the stack's does and Theorem 3.8
leaves out. Operations is the factor of Theorem 3.11, with ĉ from the sizes of the weights. Speeds are those after
the first token. Unigrams and bigrams are counts of the training text; prompt lookup goes on as the text did before.
In process target and drafter share one thread."""
_HEAD = (
    "drafter", "where", "temperature", "γ", "α", "c", "r", "β", "E", "E measured", "S", "S ahead", "S measured",
    "operations",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Prediction:
    """One row of the table: a drafter at one γ."""

    drafter: str
    where: str
    temperature: float
    gamma: int
    alpha: float
    costs: tuple[float, float, float]
    """The costs c, r and β, in decode steps of the target."""
    tokens: float
    """Measured number of tokens per round."""
    measured: Ratio
    operations: float

    @property
    def predicted(self) -> float:
        """The predicted speed-up, by Theorem 3.8."""
        return speedup(self.alpha, self.gamma, *self.costs)

    @property
    def drafting_ahead(self) -> float:
        """The predicted speed-up of a drafter that drafts ahead."""
        return ahead(self.alpha, self.gamma, *self.costs)

    def row(self) -> list[str]:
        """The cells of the row."""
        numbers = (self.alpha, *self.costs, expected_tokens(self.alpha, self.gamma), self.tokens, self.predicted)
        last = "" if self.where == "process" else f"{self.drafting_ahead:.2f}"
        shown = [f"{number:.2f}" for number in numbers]
        first = [self.drafter, self.where, f"{self.temperature:g}", str(self.gamma)]
        return [*first, *shown, last, str(self.measured), f"{self.operations:.2f}"]


@dataclass(frozen=True, slots=True)
class Trial:
    """A drafter at a temperature, in process."""

    candidate: Candidate
    temperature: float
    alpha: float
    costs: Costs

    def predictions(self, where: str, gammas: Sequence[int], runs: Runs, unit: tuple[float, float]) -> list[Prediction]:
        """Return a row for each γ. `unit` is the seconds of a plain round and of the round trip to the drafter."""
        c, r, beta = self.costs.in_steps(self.candidate.name, *unit)
        plain = [run.pace for run in runs["0"]]
        return [
            Prediction(
                self.candidate.name,
                where,
                self.temperature,
                gamma,
                self.alpha,
                (c, r, beta),
                _tokens(runs, str(gamma)),
                paired([run.pace for run in runs[str(gamma)]], plain),
                operations_factor(self.alpha, gamma, self.candidate.c_ops),
            )
            for gamma in gammas
        ]


def measure(lab: Lab) -> Report:
    """Measure everything in process first, then some drafters through the stack with the results."""
    scale = lab.scale
    target, guessers = load(scale.pair.target, compiled=scale.compiled), candidates(scale.pair)
    rows, trials = list[Prediction](), list[Trial]()
    drafters = {each.name: each.load(compiled=scale.compiled) for each in guessers}
    for temperature in _TEMPERATURES:
        ask = scale.pair.asks(1, scale.prompt, 2 * scale.theory_steps, temperature)[0]
        found = costs.measure(target, drafters, ask, scale.theory_steps)
        for guesser in guessers:
            runs = _runs(scale, Local(target, drafters[guesser.name]), temperature)
            trials.append(Trial(guesser, temperature, acceptance(runs, scale.theory_gammas), found))
            rows += trials[-1].predictions("process", scale.theory_gammas, runs, (found.step, 0.0))
    for name in scale.served:
        rows += _served(lab, [trial for trial in trials if trial.candidate.name == name])
    charts = [
        _chart([row for row in rows if (row.where, row.temperature) == (where, temperature)])
        for where in ("process", "stack")
        for temperature in _TEMPERATURES
    ]
    return Report("theory", _TEXT, _figures(rows), [Table(_HEAD, [row.row() for row in rows])], charts)


def _served(lab: Lab, trials: Sequence[Trial]) -> list[Prediction]:
    scale, candidate = lab.scale, trials[0].candidate
    rows = list[Prediction]()
    with ExitStack() as started:
        own = (*lab.arguments, "--drafter-kind", candidate.kind, "--drafter", str(candidate.path))
        system = lab.system() if candidate.kind == "model" else started.enter_context(running(scale.pair, *own))
        for trial in trials:
            runs = _runs(scale, system, trial.temperature)
            step = spread([run.round_seconds for run in runs["0"]]).value
            rows += trial.predictions("stack", scale.theory_gammas, runs, (step, _trip(system)))
    return rows


def _runs(scale: Scale, peer: Peer, temperature: float) -> Runs:
    tokens, asks, repeats = scale.theory
    peers: dict[str, Peer] = {str(gamma): Fixed(peer, gamma) for gamma in (0, *scale.theory_gammas)}
    wanted: list[Ask] = scale.pair.asks(asks, scale.prompt, tokens, temperature)
    return interleave(peers, wanted, repeats)


def acceptance(runs: Runs, gammas: Sequence[int]) -> float:
    """Return accepted / judged over all γ. A position for which the drafter had no guess counts as judged."""
    made = [run for gamma in gammas for run in runs[str(gamma)]]
    accepted, rejected = sum(run.accepted for run in made), sum(run.rejected for run in made)
    return accepted / max(1, accepted + rejected)


def _tokens(runs: Runs, name: str) -> float:
    """Return the tokens per round, without the first round and its prompt."""
    return sum(len(run.tokens) - run.opening for run in runs[name]) / sum(run.rounds - 1 for run in runs[name])


def _trip(system: Stack) -> float:
    """Return the seconds from the verifier to its drafter and back."""
    trips = (
        each for name, each in system.metrics("verifier").items() if name.startswith("specdec_drafter_rtt_seconds")
    )
    return next(trips, 0.0)


def _figures(rows: Sequence[Prediction]) -> list[Figure]:
    inside, served = ([row for row in rows if row.where == where] for where in ("process", "stack"))
    return [
        figure("in process, measured / S", spread([row.measured.value / row.predicted for row in inside])),
        figure("stack, measured / S", spread([row.measured.value / row.predicted for row in served])),
        figure("stack, measured / S ahead", spread([row.measured.value / row.drafting_ahead for row in served])),
    ]


def _chart(rows: Sequence[Prediction]) -> Chart:
    curves = dict[str, list[tuple[float, float]]]()
    for row in rows:
        curves.setdefault(row.drafter, []).append((float(row.gamma), row.measured.value))
        predicted = row.predicted if row.where == "process" else row.drafting_ahead
        curves.setdefault(f"{row.drafter}, predicted", []).append((float(row.gamma), predicted))
    where, temperature = rows[0].where, rows[0].temperature
    name = f"theory-{where}-{temperature:g}"
    return Chart(name, f"γ (in the {where}, temperature {temperature:g})", "speed, plain = 1", curves)
