"""Draft sources without a model, on new text and in repetitive loops: speed over plain decoding."""

from collections.abc import Sequence

from benchmarks.local import load
from benchmarks.replay import Replayer, Tally
from benchmarks.reports.results import Figure, Goal, Report, Table, figure
from benchmarks.reports.statistics import Ratio, paired
from benchmarks.sections.lab import Lab
from benchmarks.texts import Replayed, workloads

PLAIN = ""
SOURCES = ("ngram", "prompt_lookup", "suffix", "prediction")
NOVEL = ("code", "chat")
LOOPS = ("edit loop", "agent loop")
_TURNS, _TOKENS = 6, 240
_TEXT = """\
Texts are replayed: the target computes every pass but is made to write a known text. So the times are real, and
acceptance depends on the text alone. Code is held-out files of the standard library, and chat is pages of this
documentation; no model was trained on either. In the edit loop each turn writes a file again with a few changes. In the
agent loop tool calls in JSON are repeated with other arguments. `prediction` is given the prompt. One greedy sequence
on one thread, CPU time after the prompt; each source chooses its own draft length. Sides take turns, and speeds are
ratios within a turn."""
_HEAD = ("work", "source", "speed / plain", "α", "tokens a round", "drafted a round")


def measure(lab: Lab) -> Report:
    """Measure every source on every kind of work, in turn with plain decoding."""
    scale = lab.scale
    turns, tokens = (2, 24) if scale.repeats == 1 else (_TURNS, _TOKENS)
    target = load(scale.pair.target, compiled=scale.compiled)
    rows, figures, speeds = list[list[str]](), list[Figure](), dict[tuple[str, str], list[float]]()
    for work, texts in workloads(scale.pair, turns, tokens).items():
        sides = {name: Replayer(target, name) for name in (PLAIN, *SOURCES)}
        speeds |= {(work, name): each for name, each in _paces(sides, texts).items()}
        for name in SOURCES:
            ratio = paired(speeds[work, name], speeds[work, PLAIN])
            rows.append([work, name, str(ratio), *_row(sides[name].tally)])
            figures += _judged(work, name, ratio)
    figures += [
        figure(f"{work}, suffix / prompt_lookup", paired(speeds[work, "suffix"], speeds[work, "prompt_lookup"]))
        for work in LOOPS
    ]
    return Report("sources", _TEXT, figures, [Table(_HEAD, rows)])


def _paces(sides: dict[str, Replayer], texts: Sequence[Replayed]) -> dict[str, list[float]]:
    """Return the tokens a CPU second of each turn but the first, in which a store is empty."""
    paces: dict[str, list[float]] = {name: [] for name in sides}
    for turn in texts:
        for name, side in sides.items():
            tokens, seconds = side.tally.tokens, side.tally.seconds
            side.run(turn)
            paces[name].append((side.tally.tokens - tokens) / (side.tally.seconds - seconds))
    return {name: each[1:] for name, each in paces.items()}


def _row(tally: Tally) -> list[str]:
    per_round = (tally.tokens / tally.rounds, tally.drafted / tally.rounds)
    return [f"{tally.alpha:.2f}", *(f"{each:.2f}" for each in per_round)]


def _judged(work: str, name: str, ratio: Ratio) -> list[Figure]:
    """Return the figures with goals."""
    goals = {(name, novel): Goal(0.97) for name in SOURCES for novel in NOVEL}
    goals |= {("suffix", loop): Goal(3.0) for loop in LOOPS}
    goals["ngram", "agent loop"] = Goal(1.0)
    goal = goals.get((name, work))
    return [figure(f"{work}, {name} / plain", ratio, goal)] if goal else []
