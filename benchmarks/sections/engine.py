"""One sequence at a time in one process: our engine against `generate()`, plain and with an assistant."""

from collections.abc import Mapping
from contextlib import ExitStack

from benchmarks.peers import Fixed, Process, interleave
from benchmarks.results import Figure, Report
from benchmarks.run import Peer, Run
from benchmarks.sections.scale import Scale
from benchmarks.statistics import Ratio, paired
from benchmarks.worker import Spec

PLAIN, SPECULATIVE = "engine plain", "engine γ={}"
HF, HF_DEFAULT, HF_FIVE = "hf generate", "hf assisted", "hf assisted 5 constant"


def measure(scale: Scale) -> Report:
    """Speeds as ratios, batch 1, greedy, one thread a process."""
    with ExitStack() as processes:
        peers = hugging_face(processes, scale)
        own = processes.enter_context(Process(spec(scale, "engine")))
        peers[PLAIN] = Fixed(own, 0)
        peers |= {SPECULATIVE.format(gamma): Fixed(own, gamma) for gamma in scale.gammas}
        asks = scale.pair.asks(scale.asks, scale.prompt, scale.tokens)
        runs = interleave(peers, asks, scale.repeats)
    best = max(
        (SPECULATIVE.format(gamma) for gamma in scale.gammas), key=lambda name: float(ratio(runs, name, PLAIN).value)
    )
    curve = [(float(gamma), ratio(runs, SPECULATIVE.format(gamma), PLAIN).value) for gamma in scale.gammas]
    figures = [_figure(runs, PLAIN, HF, "≥ 1.0"), _figure(runs, best, PLAIN, "")]
    figures += [_figure(runs, best, peer, "≥ 1.0") for peer in (HF_DEFAULT, HF_FIVE)]
    return Report("engine", figures, {"speed-up over plain, by γ": curve})


def hugging_face(processes: ExitStack, scale: Scale) -> dict[str, Peer]:
    """The three peers, one thread each."""
    specs = {
        HF: spec(scale, "hf"),
        HF_DEFAULT: spec(scale, "hf-assisted"),
        HF_FIVE: spec(scale, "hf-assisted", constant=5),
    }
    return {name: processes.enter_context(Process(each)) for name, each in specs.items()}


def spec(scale: Scale, kind: str, constant: int | None = None, drafter_kind: str = "model") -> Spec:
    """A worker on the scale's pair."""
    pair = scale.pair
    return Spec(kind, str(pair.target), str(pair.drafter), constant=constant, drafter_kind=drafter_kind)  # type: ignore[arg-type]


def ratio(runs: Mapping[str, list[Run]], one: str, other: str) -> Ratio:
    """Speed of `one` over speed of `other`."""
    return paired([run.speed for run in runs[one]], [run.speed for run in runs[other]])


def _figure(runs: Mapping[str, list[Run]], one: str, other: str, target: str) -> Figure:
    return Figure("engine", f"{one} / {other}", str(ratio(runs, one, other)), target)
