"""Trees against chains, at equal nodes and at equal time, and two drafters against one."""

from collections.abc import Sequence

from benchmarks.local import load
from benchmarks.reports.results import Figure, Report, Table, figure
from benchmarks.reports.statistics import Ratio, paired, spread
from benchmarks.sections.lab import Lab
from benchmarks.trees import TreeDecoder, Way, Work
from drafter_service.app import load_drafter
from drafter_service.config import DrafterSettings
from specdec.rules.speculation import TreeOptions

TEMPERATURES = (0.0, 0.7, 1.0)
CHAINS = (3, 5, 8)
WAYS = (
    Way("plain"),
    *(Way(f"chain of {gamma}", gamma) for gamma in CHAINS),
    Way("tree of 8, 4 deep", tree=TreeOptions(8, 3, 4)),
    Way("tree of 12, 4 deep", tree=TreeOptions(12, 3, 4)),
    Way("tree of 8, 4 deep, half of it n-grams", tree=TreeOptions(8, 3, 4), ngrams=True),
)
_PAIRS = (
    ("equal nodes: tree of 8 / chain of 8", "tree of 8, 4 deep", "chain of 8"),
    ("two drafters / one", "tree of 8, 4 deep, half of it n-grams", "tree of 8, 4 deep"),
)
_TEXT = """\
The draft model grows the tree in process, a level in each pass, and the target judges it: one sequence, one thread, CPU
time with the prompt's. All ways take each prompt in turn. At equal nodes the target judges as many tokens in a round;
at equal time a way is compared with the fastest chain of its temperature, by tokens a CPU second. With n-grams of the
sequence as a second drafter, each drafts for half of the nodes."""
_HEAD = ("temperature", "way", "tokens a round", "speed / plain", "speed / best chain")


def measure(lab: Lab) -> Report:
    """Measure every way at every temperature."""
    scale = lab.scale
    target = load(scale.pair.target, compiled=scale.compiled)
    model = {"path": scale.pair.drafter, "device": "cpu", "compile": scale.compiled}
    forester = TreeDecoder(target, load_drafter(DrafterSettings.load(None, {"model": model})))
    rows, figures = list[list[str]](), list[Figure]()
    temperatures = TEMPERATURES if scale.repeats > 1 else TEMPERATURES[-1:]
    for temperature in temperatures:
        asks = scale.pair.asks(scale.asks, scale.prompt, scale.tokens, temperature) * scale.repeats
        works: dict[str, list[Work]] = {way.name: [] for way in WAYS}
        for ask in asks:
            for way in WAYS:
                works[way.name].append(forester.run(way, ask))
        rows += _rows(temperature, works)
        figures += [
            figure(f"T={temperature:g}, {name}", _speed(works[over], works[under])) for name, over, under in _PAIRS
        ]
    return Report("trees", _TEXT, figures, [Table(_HEAD, rows)])


def _rows(temperature: float, works: dict[str, list[Work]]) -> list[list[str]]:
    chains = [works[way.name] for way in WAYS if way.gamma]
    best = max(chains, key=lambda each: spread([work.pace for work in each]).value)
    return [
        [
            f"{temperature:g}",
            name,
            f"{spread([work.each_round for work in each]).value:.2f}",
            str(_speed(each, works["plain"])),
            str(_speed(each, best)),
        ]
        for name, each in works.items()
    ]


def _speed(over: Sequence[Work], under: Sequence[Work]) -> Ratio:
    return paired([work.pace for work in over], [work.pace for work in under])
