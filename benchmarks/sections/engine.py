"""One sequence at a time in one process: our engine against `generate()`, plain and with an assistant."""

from benchmarks.peers.turns import Fixed, agreement, interleave, ratio
from benchmarks.reports.results import Chart, Report, figure
from benchmarks.run import Peer
from benchmarks.sections.lab import HF, HF_DEFAULT, HF_FIVE, Lab
from benchmarks.sections.times import latencies

PLAIN, EAGER, SPECULATIVE = "engine plain", "engine plain, not compiled", "engine γ={}"
_TEXT = """\
Batch 1, one process and one thread each, nothing between target and drafter: they take turns on the thread. This is
what the arithmetic of the engine is worth by itself."""


def measure(lab: Lab) -> Report:
    """Measure speeds as ratios."""
    gammas = lab.scale.gammas
    own = lab.engine()
    speculative: dict[str, Peer] = {SPECULATIVE.format(gamma): Fixed(own, gamma) for gamma in gammas}
    eager = Fixed(lab.engine(compiled=False), 0)
    peers = {**lab.hugging_face(), EAGER: eager, PLAIN: Fixed(own, 0), **speculative}
    runs = interleave(peers, lab.asks(), lab.scale.repeats)
    best = max(speculative, key=lambda name: ratio(runs, name, PLAIN).value)
    wanted = ((PLAIN, HF), (EAGER, HF), (best, PLAIN), (best, HF), (best, HF_DEFAULT), (best, HF_FIVE))
    figures = [figure(f"{one} / {other}", ratio(runs, one, other)) for one, other in wanted]
    curve = [(float(gamma), ratio(runs, SPECULATIVE.format(gamma), PLAIN).value) for gamma in (*gammas,)]
    chart = Chart("gamma", "γ", "speed, plain = 1", {"engine, batch 1": [(0.0, 1.0), *curve]})
    return Report("engine", _TEXT, [*figures, agreement(runs)], [latencies(runs)], [chart])
