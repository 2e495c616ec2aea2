"""Effect of the network between verifier and drafter, and of faulty drafters, on each way to draft and on γ."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from benchmarks.reports.results import Chart, Figure, Goal, Report, Table, figure
from benchmarks.reports.statistics import Ratio, paired
from benchmarks.run import Ask
from benchmarks.sections.lab import Lab
from benchmarks.systems.apart import Apart, DrafterSpec, Slice, StepTime, apart

_TEXT = """\
A verifier and its drafters as processes on real sockets. A proxy between them delays every byte by half a round trip,
in both directions and in order. Models are slowed to the times of an accelerator: a pass takes the same time for any
work. "Synchronous" drafts only on request. "Ahead" drafts on while the target verifies, as if the draft and the next
token were right; both have a fixed γ. "Push" also sends chains for 8 likely outcomes of the running verdict. "Auto"
leaves γ to the verifier, whose drafter drafts ahead. Ways take turns, and each speed is relative to plain decoding in
the same turn. "Of r = 0" is that ratio divided by the one without a delay. γ is the mean number of drafts in a round.
"Dead" is an address at which nothing listens, "slow" adds 0.1 s to each step, and "lying" drafts made-up tokens with
full certainty; there γ is the verifier's choice. The last table has the γ that the verifier chooses when drafts are
expensive: {sessions} sessions at temperature {temperature:g}, a drafter that drafts only on request and takes {step:g}
ms a step, and waits of up to {wait:g} s (`drafting.timeout`); the first {settling} slices of each delay are not
counted."""
_HEAD = ("way", "round trip, ms", "in target passes", "speed / plain", "of r = 0", "tokens a round", "γ")
_FAULTY_HEAD = ("drafter", "speed / plain", "γ")
_CHOICE_HEAD = ("round trip, ms", "in target passes", "γ")
_OFF, _AUTO = "off", "auto"
_AHEAD = "ahead"
"""The drafter for 'auto'."""
_SYNCHRONOUS = "synchronous"
_WARM_UP = 1
"""Warm-up slices, in which the verifier learns the network's delay."""
_LEARNING = 4
"""Slices of "auto" before all others, so that its initial learning is not part of the first round trip."""
DRAFTERS: Mapping[str, DrafterSpec] = {
    _SYNCHRONOUS: DrafterSpec({"AHEAD": "0", "OUTCOMES": "0"}),
    _AHEAD: DrafterSpec({"OUTCOMES": "0"}),
    "push": DrafterSpec({}),
}
"""The drafters with a fixed γ."""
_PUSHING = {"DRAFTING__OUTCOMES": "8"}
"""Settings of the verifier."""
FAULTS = ("dead", "slow", "lying")
_CRITICAL = 0.6
_LEAST = 0.97
_LONGER = 1.1
"""Least ratio of γ at the longest measured round trip to γ without a round trip."""
_SETTLING = 10
"""Slices before the chosen γ is read. After fewer, it still reflects the previous network."""
_LONGEST_WAIT = 1.0
"""Longest wait of a round in seconds when γ is chosen, longer than any draft that would pay."""
_KEPT = {"push": Goal(0.9)}
"""Share of its speed that a way must keep at the critical round trip."""


def measure(lab: Lab) -> Report:
    """Measure every way at every round trip, then the faulty drafters without one."""
    scale, (target, drafter) = lab.scale, lab.scale.rtt_steps
    steps = StepTime(target), StepTime(drafter)
    found: dict[tuple[str, float], tuple[Ratio, list[Slice]]] = {}
    with apart(scale.pair, steps, DRAFTERS, _PUSHING) as system:
        for ask in scale.pair.asks(_LEARNING, scale.prompt, scale.rtt_tokens):
            _slice(system, [ask], _AUTO, None)
        for delay in scale.rtt_delays:
            system.round_trip(delay)
            for way, each in _turns(lab, system, {**dict.fromkeys(DRAFTERS, scale.rtt_gamma), _AUTO: None}).items():
                found[way, delay] = each
    with apart(scale.pair, steps, {name: DrafterSpec({}, name) for name in FAULTS}, _PUSHING) as system:
        faulty = _turns(lab, system, dict.fromkeys(FAULTS))
    rows = [_row(way, delay, scale.rtt_steps[0], found) for way, delay in sorted(found, key=lambda each: each[0])]
    lost = [[name, str(ratio), _gamma(slices)] for name, (ratio, slices) in faulty.items()]
    figures = [figure(f"{name} drafter, speed / plain", ratio, Goal(_LEAST)) for name, (ratio, _) in faulty.items()]
    choices = _choices(lab)
    chosen = [[f"{1000 * delay:g}", f"{delay / target:.2f}", f"{gamma:.1f}"] for delay, gamma in choices.items()]
    tables = [Table(_HEAD, rows), Table(_FAULTY_HEAD, lost), Table(_CHOICE_HEAD, chosen)]
    sessions, temperature, step = scale.rtt_choice
    text = _TEXT.format(
        sessions=sessions, temperature=temperature, step=1000 * step, wait=_LONGEST_WAIT, settling=_SETTLING
    )
    return Report("rtt", text, [*_network(lab, found), *figures, _growth(choices)], tables, [_chart(found)])


def _choices(lab: Lab) -> dict[float, float]:
    """Return the mean γ that the verifier chooses at each round trip if a long draft is expensive."""
    scale, (sessions, temperature, step) = lab.scale, lab.scale.rtt_choice
    turns = range(_SETTLING + scale.rtt_turns)
    asks = [
        scale.pair.asks(sessions, scale.prompt, scale.rtt_tokens, temperature, first=turn * sessions) for turn in turns
    ]
    steps, found = (StepTime(scale.rtt_steps[0]), StepTime(step)), dict[float, float]()
    waits = {"DRAFTING__TIMEOUT": str(_LONGEST_WAIT)}
    with apart(scale.pair, steps, {_SYNCHRONOUS: DRAFTERS[_SYNCHRONOUS]}, waits) as system:
        for delay in scale.rtt_delays:
            system.round_trip(delay)
            slices = [system.together(each, _SYNCHRONOUS) for each in asks]
            found[delay] = _mean_gamma(slices[_SETTLING:])
    return found


def _growth(choices: Mapping[float, float]) -> Figure:
    longest = max(choices)
    growth = choices[longest] / max(choices[0.0], 1e-9)
    name, goal = f"γ at {1000 * longest:g} ms over γ without delay, where a draft costs much", Goal(_LONGER)
    return Figure(name, f"{growth:.2f}", str(goal), goal.verdict(growth))


def _turns(lab: Lab, system: Apart, ways: Mapping[str, int | None]) -> dict[str, tuple[Ratio, list[Slice]]]:
    """Return each way's speed over plain decoding, and its slices. A way is a drafter with a γ, or None for auto.

    Every turn has its own prompts.
    """
    turns, sessions = lab.scale.rtt_turns + _WARM_UP, lab.scale.rtt_sessions
    prompts = lab.scale.pair.asks(turns * sessions, lab.scale.prompt, lab.scale.rtt_tokens)
    done: dict[str, list[Slice]] = {way: [] for way in (_OFF, *ways)}
    for turn in range(turns):
        asks = prompts[turn * sessions : (turn + 1) * sessions]
        order = list(done)
        for way in order if turn % 2 else reversed(order):
            made = _slice(system, asks, way, 0 if way == _OFF else ways[way])
            if turn >= _WARM_UP:
                done[way].append(made)
    plain = [each.speed for each in done[_OFF]]
    return {way: (paired([each.speed for each in done[way]], plain), done[way]) for way in ways}


def _slice(system: Apart, asks: Sequence[Ask], way: str, gamma: int | None) -> Slice:
    drafter = way if way in system.proxies else next((each for each in system.proxies if each == _AHEAD), "dead")
    return system.together([replace(ask, gamma=gamma) for ask in asks], drafter)


def _row(
    way: str, delay: float, step: float, found: Mapping[tuple[str, float], tuple[Ratio, list[Slice]]]
) -> list[str]:
    ratio, slices = found[way, delay]
    tokens = 1 + sum(each.accepted for each in slices) / sum(each.rounds for each in slices)
    kept = ratio.value / found[way, 0.0][0].value
    return [way, f"{1000 * delay:g}", f"{delay / step:.2f}", str(ratio), f"{kept:.2f}", f"{tokens:.2f}", _gamma(slices)]


def _gamma(slices: Sequence[Slice]) -> str:
    return f"{_mean_gamma(slices):.1f}"


def _mean_gamma(slices: Sequence[Slice]) -> float:
    return sum(each.drafted for each in slices) / sum(each.rounds for each in slices)


def _network(lab: Lab, found: Mapping[tuple[str, float], tuple[Ratio, list[Slice]]]) -> list[Figure]:
    """Return the speed that each way keeps at the longest round trip of at most 0.6 target passes."""
    short = [delay for delay in lab.scale.rtt_delays if delay <= _CRITICAL * lab.scale.rtt_steps[0]]
    ways = dict.fromkeys(way for way, _ in found)
    return [_keeping(way, short[-1], found[way, short[-1]][0].value / found[way, 0.0][0].value) for way in ways]


def _keeping(way: str, delay: float, kept: float) -> Figure:
    name, goal = f"{way} at {1000 * delay:g} ms, of its speed without delay", _KEPT.get(way)
    return Figure(name, f"{kept:.2f}", str(goal or ""), goal.verdict(kept) if goal else "")


def _chart(found: Mapping[tuple[str, float], tuple[Ratio, list[Slice]]]) -> Chart:
    curves: dict[str, list[tuple[float, float]]] = {way: [] for way, _ in found}
    for (way, delay), (ratio, _) in found.items():
        curves[way].append((1000 * delay, ratio.value))
    return Chart("rtt", "round trip, ms", "speed / plain decoding", curves)
