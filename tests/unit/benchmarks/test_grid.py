"""The grid's cells: their text, and that each is measured once."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from benchmarks import machine
from benchmarks.pair import Pair
from benchmarks.reports import kept
from benchmarks.run import MIXED, Ask, at_temperature
from benchmarks.sections import grid, grid_cells, grid_stack, shared_device
from benchmarks.sections.grid_cells import Cell, Grid
from benchmarks.sections.lab import Lab
from benchmarks.sections.scale import Scale, quick
from benchmarks.systems.apart import StepTime
from benchmarks.systems.faulty import Faulty
from benchmarks.systems.slowed import device_held
from benchmarks.systems.stack import Stack
from drafter_service.drafters.source_drafter import SourceDrafter
from drafter_service.drafters.source_reader import SourceReader
from drafter_service.sessions.draft_session import DraftSession
from drafter_service.sessions.drafter import DraftedToken, ScheduledSession
from specdec.rules.speculation import Mode
from specdec.sampling.params import SamplingParams
from specdec.sources.prompt_lookup import PromptLookup
from specdec.wire.session import Open

CELL = Cell("model", "1", 4, (100.0, 110.0, 90.0), (120.0, 132.0, 108.0), ((130.0, 140.0, 120.0),), "not_worth_it")
PAIR = Pair(Path("m/target"), Path("m/drafter"))


def test_a_cell_compares_auto_with_off_and_with_the_best_fixed_gamma() -> None:
    assert CELL.gain.value == pytest.approx(1.2)
    assert CELL.near == pytest.approx(360 / 390)
    assert CELL.row()[:3] == ["model", "1", "4"]
    assert Cell("dead", "1", 4, (100.0,), (99.0,), (), "drafter_unavailable").near is None


def test_the_figures_say_how_many_cells_are_good_enough() -> None:
    lost = Cell("lying", "0", 1, (100.0,), (90.0,), (), "")
    off, fixed = grid_cells._figures([CELL, lost])
    assert (off.value, off.reached, fixed.value) == ("1 of 2", "no", "0 of 1")


def test_mixed_asks_are_half_greedy_and_half_sampled() -> None:
    pair = Pair(machine.ROOT / "models/demo/target", machine.ROOT / "models/demo/drafter")
    asks = at_temperature(pair.asks(4, 8, 8), MIXED)
    assert [ask.temperature for ask in asks] == [0.0, 1.0, 0.0, 1.0]


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Record temperature and streams of each measured cell, in a folder of its own and without a system."""
    cells: list[tuple[str, int]] = []

    def cell(self: Grid, lab: Lab, system: object, drafter: str, temperature: str, streams: int) -> Cell:
        cells.append((temperature, streams))
        return CELL

    monkeypatch.setattr(kept, "ROOT", tmp_path)
    monkeypatch.setattr(Grid, "cell", cell)
    return cells


def test_a_cell_is_measured_again_unless_the_run_goes_on(
    measured: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grid, "_system", lambda lab, steps, drafter: nullcontext())
    scale = replace(quick(PAIR), sessions=(4,), grid_drafters=("model",))
    first = grid.measure(Lab(scale))
    assert grid.measure(Lab(replace(scale, resume=True))) == first
    assert measured == [("1", 4)]
    grid.measure(Lab(scale))
    grid.measure(Lab(replace(scale, resume=True, grid_tokens=9)))
    assert len(measured) == 3


class Listening:
    """A system that records its requests. Automatic γ runs at `auto` tokens per second, others at 1."""

    def __init__(self, auto: float = 2.0) -> None:
        self.slices = list[tuple[list[Ask], float]]()
        self._auto = auto

    def steady(self, asks: Sequence[Ask], streams: int, seconds: float, burst: Sequence[Ask]) -> float:
        self.slices.append(([*asks, *burst], seconds))
        return self._auto if asks[0].gamma is None else 1.0

    def reasons(self) -> dict[str, float]:
        return {}


def test_the_ways_of_a_turn_answer_the_same_prompts_and_turns_differ() -> None:
    pair = Pair(machine.ROOT / "models/demo/target", machine.ROOT / "models/demo/drafter")
    lab, heard = Lab(replace(quick(pair), prompt=64, grid_gammas=(3,))), Listening()
    timing = grid_cells.Timing(1.0, 2, 5.0, 6)
    Grid("grid", "", timing, lambda drafter: nullcontext(heard)).cell(lab, lambda: heard, "model", "1", 2)
    warm_up, *slices = heard.slices
    assert warm_up[1] == 5.0
    assert {seconds for _, seconds in slices} == {3.0}  # two streams: longer than a slice of six
    turns = [slices[:3], slices[3:]]
    gammas = [[asks[0].gamma for asks, _ in turn] for turn in turns]
    assert gammas == [[3, None, 0], [0, None, 3]]
    asked = [{tuple(replace(ask, gamma=None) for ask in asks) for asks, _ in turn} for turn in [[warm_up], *turns]]
    assert [len(each) for each in asked] == [1, 1, 1]
    prompts = [ask.prompt for (each,) in asked for ask in each]
    assert len(set(prompts)) == len(prompts)


@pytest.mark.parametrize(("auto", "turns"), [(1.2, 2), (0.98, 8), (0.94, 2)])
def test_an_undecided_cell_has_more_turns_of_auto_and_off(auto: float, turns: int) -> None:
    pair = Pair(machine.ROOT / "models/demo/target", machine.ROOT / "models/demo/drafter")
    lab, heard = Lab(replace(quick(pair), grid_gammas=(3,))), Listening(auto)
    timing = grid_cells.Timing(1.0, 2, 5.0, 6, more=6)
    cell = Grid("grid", "", timing, lambda drafter: nullcontext(heard)).cell(lab, lambda: heard, "model", "1", 8)
    assert (len(cell.off), len(cell.auto), len(cell.fixed[0])) == (turns, turns, 2)
    assert cell.near == pytest.approx(auto)


def test_turns_that_differ_leave_the_question_open() -> None:
    assert grid_cells.clear([1.01, 1.03, 1.02], [1.0, 1.0, 1.0])
    assert not grid_cells.clear([0.9, 1.14, 1.02], [1.0, 1.0, 1.0])
    assert not grid_cells.clear([1.5], [1.0])


def test_a_drafter_that_gives_nothing_does_not_make_slices_longer() -> None:
    assert grid_cells.Timing(1.0, 2, 5.0, 6).slice("dead", 1) == 1.0


def test_one_stream_is_no_mixed_load(measured: list[tuple[str, int]]) -> None:
    scale = replace(quick(PAIR), sessions=(1, 4), grid_drafters=("model",), grid_temperatures=("0", MIXED))
    grid.measure(Lab(scale))
    assert measured == [("0", 1), ("0", 4), (MIXED, 4)]


def test_a_lying_drafter_says_that_it_is_certain_of_what_it_made_up() -> None:
    reader = SourceReader(lambda domain, known: PromptLookup(3, 16), ahead=0)
    drafter = SourceDrafter("lookup", "prompt_lookup", {"a": 0, "b": 1, "c": 2}, reader)
    opened = Open("s", 1, (0, 1, 0), 3, SamplingParams(), Mode.REJECTION, 2, 20)
    session = DraftSession("s", opened, 20)
    drafter.sequences.admit("s", 20)
    honest, *_ = drafter.step([ScheduledSession(session, 3)])
    drafter.sequences.truncate("s", 0)
    lie, *_ = Faulty(drafter, "lying").step([ScheduledSession(session, 3)])
    assert isinstance(honest, DraftedToken)
    assert isinstance(lie, DraftedToken)
    assert lie.token != honest.token
    assert lie.probs is not None
    assert torch.equal(lie.probs.ids, torch.tensor([lie.token]))


def test_a_faulty_drafter_is_measured_once_the_verifier_has_met_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("no drafter. Start it: python -m drafter_service --config /tmp/d.yaml\n")
    system = Stack("", {}, {}, log)
    assert grid_stack._offered(system) == "/tmp/d.yaml"
    looks = iter([{}, {"specdec_drafter_up/d:1/ready": 0.0}, {"specdec_drafter_up/d:1/ready": 1.0}])
    met = type("Met", (), {"metrics": lambda self, role: next(looks)})()
    assert [grid_stack._ready(met) for _ in range(3)] == [False, False, True]


def _busy(start: float, seconds: float, device: str) -> tuple[float, float]:
    """Return start and end of a pass of this many seconds."""
    time.sleep(max(0.0, start - time.monotonic()))
    with device_held(device):
        began = time.monotonic()
        time.sleep(seconds)
        return began, time.monotonic()


def test_passes_on_a_shared_device_follow_each_other(tmp_path: Path) -> None:
    start, device = time.monotonic() + 0.2, str(tmp_path / "device")
    with ThreadPoolExecutor(3) as threads:
        spans = sorted(threads.map(lambda _: _busy(start, 0.05, device), range(3)))
    assert all(before[1] <= after[0] for before, after in pairwise(spans))


def test_slow_motion_has_the_cells_of_a_shared_device(
    measured: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[tuple[StepTime, StepTime]]()

    def system(lab: Lab, steps: tuple[StepTime, StepTime], drafter: str) -> nullcontext[None]:
        asked.append(steps)
        return nullcontext()

    monkeypatch.setattr(shared_device, "_system", system)
    report = shared_device.measure(Lab(replace(Scale(PAIR), shared_sessions=(1, 16))))
    assert report.section == "shared_device"
    assert measured == [("0", 1), ("0", 16), ("1", 1), ("1", 16)]
    assert "a pass of the target takes 52.6 ms and 0.18 ms a token, one of the\ndrafter 13 ms" in report.text
    assert "A slice of 6 s stands for one of 0.6 s there." in report.text
