"""Gain of ping-pong, two groups of sessions that draft and verify alternately, over one group."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from benchmarks.pair import Pair
from benchmarks.reports.results import Figure, Goal, Report, Table, figure
from benchmarks.reports.statistics import paired
from benchmarks.run import Ask
from benchmarks.sections.lab import Lab
from benchmarks.systems.apart import DrafterSpec, Slice, StepTime, apart
from specdec.planning.gamma_policy import GammaPolicy

_TEXT = """\
A verifier and a drafter as processes of their own for each way, with models slowed to a base and a time for each token
of a pass. Target and drafter are the same small model at temperature 0, so that nearly every draft is accepted:
drafting pays in every way, and what is compared is the order of work. γ is the verifier's choice, at most {most}, and
nothing is drafted before it is asked for. "One group" verifies all {sessions} sessions in every pass and waits for all
their drafts; "two groups" are drafted for and verified in turns; "auto" has to find out. A pass of the target takes
{target}, one of the drafter {drafter}. Ways take turns, and speeds are over one group's in the same turn."""
_ONE, _TWO, _AUTO, _OFF = "one group", "two groups", "auto", "off"
_SETTINGS: Mapping[str, str] = {_ONE: "1", _TWO: "2", _AUTO: "auto"}
_WARM_UP = 2
"""Warm-up slices, in which each verifier learns the duration of its passes and drafts."""
_GAIN = 1.3
_DRAFTER = "synchronous"


def measure(lab: Lab) -> Report:
    """Measure every way in turns, each on its own running system."""
    scale = lab.scale
    steps = StepTime(*scale.pingpong_steps[:2]), StepTime(*scale.pingpong_steps[2:])
    pair = Pair(scale.pair.drafter, scale.pair.drafter)
    asks = [
        replace(ask, policy=GammaPolicy(max=scale.pingpong_most))
        for ask in pair.asks(scale.pingpong_sessions, scale.prompt, scale.pingpong_tokens)
    ]
    drafters = {_DRAFTER: DrafterSpec({"AHEAD": "0", "OUTCOMES": "0"})}
    done: dict[str, list[Slice]] = {way: [] for way in (*_SETTINGS, _OFF)}
    with ExitStack() as running:
        systems = {
            way: running.enter_context(apart(pair, steps, drafters, {"DRAFTING__GROUPS": groups}))
            for way, groups in _SETTINGS.items()
        }
        for turn in range(scale.pingpong_turns + _WARM_UP):
            for way, slices in done.items():
                asked = [replace(ask, gamma=0) for ask in asks] if way == _OFF else asks
                made = systems[_ONE if way == _OFF else way].together(asked, _DRAFTER)
                if turn >= _WARM_UP:
                    slices.append(made)
    return Report("pingpong", _about(scale.pingpong_most, asks, steps), _figures(done), [_table(done)])


def _about(most: int, asks: Sequence[Ask], steps: tuple[StepTime, StepTime]) -> str:
    target, drafter = (f"{1000 * each.base:g} ms and {1000 * each.token:g} ms a token" for each in steps)
    return _TEXT.format(most=most, sessions=len(asks), target=target, drafter=drafter)


def _figures(done: Mapping[str, Sequence[Slice]]) -> list[Figure]:
    speeds = {way: [each.speed for each in slices] for way, slices in done.items()}
    gains = {way: paired(speeds[way], speeds[_ONE]) for way in (_TWO, _AUTO)}
    return [figure(f"{way} / {_ONE}", gain, Goal(_GAIN)) for way, gain in gains.items()]


def _table(done: Mapping[str, Sequence[Slice]]) -> Table:
    one = [each.speed for each in done[_ONE]]
    rows = []
    for way, slices in done.items():
        rounds = sum(each.rounds for each in slices)
        ratio, speed = paired([each.speed for each in slices], one), sum(each.speed for each in slices) / len(slices)
        accepted, drafted = (sum(getattr(each, name) for each in slices) / rounds for name in ("accepted", "drafted"))
        rows.append([way, str(ratio), f"{speed:.0f}", f"{1 + accepted:.2f}", f"{drafted:.1f}"])
    return Table(("way", "speed / one group", "tokens/s", "tokens a round", "γ"), rows)
