"""The GPU benchmarks: phases that fail or take too long, and the text of their figures."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from signal import Signals

import pytest
import torch
import typer
from typer.testing import CliRunner

from benchmarks import gpu_all, machine
from benchmarks.gpu import checks, stack, vllm
from benchmarks.gpu.phase import PHASES
from benchmarks.gpu.setup import Setup
from benchmarks.gpu.stack import HostCell
from benchmarks.host_path.load import Load, Loaded
from benchmarks.pair import Pair
from benchmarks.peers.cells import BASE
from benchmarks.peers.openai_client import OpenAiClient
from benchmarks.peers.servers import Servers
from benchmarks.reports.pages import ORDER, Places
from benchmarks.run import Ask, Slice
from benchmarks.sections.grid_cells import Cell, at_least_one
from specdec.errors import InternalError

TINY = ["--shape", "tiny", "--device", "cpu"]
SETUP = Setup("tiny", "cpu", quick=True, resume=False, compiled=False, models="")


def _run(*arguments: str) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(gpu_all.main)
    done = CliRunner().invoke(app, list(arguments))
    return done.exit_code, done.stderr


def test_a_phase_that_takes_too_long_is_stopped_and_named(tmp_path: Path) -> None:
    status, said = _run(*TINY, "--minutes", "0", "--out", str(tmp_path), "engine", "stack")
    assert status == 1
    assert "gpu: engine was stopped after 0 s" in said
    assert "not measured: engine, stack" in said
    assert not list(tmp_path.rglob("*.jsonl"))


def test_a_phase_that_does_not_exist_is_an_error() -> None:
    status, said = _run(*TINY, "engines")
    assert status == 2
    assert "no phase engines" in said


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_command_says_what_can_be_tried() -> None:
    status, said = _run()
    assert status == 1
    assert said == "error: no GPU here: run it on a machine that has one, or try --device cpu --shape tiny\n"


def test_a_run_goes_on_with_the_phases_that_have_no_result_of_this_commit(tmp_path: Path) -> None:
    places = Places.below(tmp_path)
    places.lines.mkdir(parents=True)
    line = {"commit": machine.commit(), "quick": False}

    def keep(section: str, **changed: object) -> None:
        with (places.lines / f"{section}.jsonl").open("a") as file:
            file.write(json.dumps(line | changed) + "\n")

    def measured(name: str, *, quick: bool = False) -> bool:
        return gpu_all._measured(name, places, quick=quick)

    keep("gpu")
    keep("gpu_host")
    keep("gpu_tests", commit="another")
    assert (measured("engine"), measured("tests"), measured("engine", quick=True)) == (True, False, False)
    assert not measured("stack")  # one of its two sections is missing
    keep("gpu_stack")
    assert measured("stack")


def test_the_page_has_a_place_for_every_section_of_a_phase() -> None:
    assert {section for phase in PHASES.values() for section in phase.sections} <= set(ORDER)
    assert sum(phase.seconds for phase in PHASES.values()) > 60 * gpu_all._MINUTES  # any cut comes at the end


def test_a_tree_without_its_history_has_the_commit_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    assert machine.commit() == "unknown"
    monkeypatch.setenv("BENCH_COMMIT", "abc123")
    assert machine.commit() == "abc123"


def test_the_share_of_the_pass_in_a_step_is_that_of_what_passes_allow() -> None:
    cell = HostCell(32, [1600.0, 2000.0, 1600.0], [0.016, 0.016, 0.016])
    assert cell.share.value == pytest.approx(0.8)
    assert cell.row() == ["32", "1600", "2000", "0.80 (0.80..0.90)", "20.00", "16.00"]


def test_gains_have_the_goals_of_their_cells() -> None:
    one = Cell("model", "0", 1, [100.0], [160.0], [], "")
    cells = [one, replace(one, streams=16, auto=[110.0]), replace(one, temperature="1")]
    figures = [(each.name, each.goal, each.reached) for each in stack._gains(cells)]
    assert figures == [
        ("auto / off, temperature 0, 1 streams", "≥ 1.5", "yes"),
        ("auto / off, temperature 0, 16 streams", "≥ 1.2", "no"),
    ]


def test_a_slice_without_a_token_is_measured_again_for_longer() -> None:
    asked = list[float]()

    def speed(seconds: float) -> float:
        asked.append(seconds)
        return 3.0 if seconds > 1.5 else 0.0

    assert at_least_one(speed, 0.5) == 3.0
    assert asked == [0.5, 1.0, 2.0]


def test_tests_that_fail_on_the_device_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_run", lambda _: (1, 2, 3, 16))
    (report,) = checks.measure(SETUP)
    assert [(each.name, each.value, each.reached) for each in report.figures] == [
        ("tests passed", "10 of 13", "no"),
        ("tests skipped", "3", ""),
    ]


def test_pytest_counts_what_ran() -> None:
    errors, failures, skipped, tests = checks._run(("tests/unit/benchmarks/test_statistics.py",))
    assert (errors, failures, skipped) == (0, 0, 0)
    assert tests > 3


def test_without_pytest_or_vllm_the_reason_is_the_result(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(checks, "find_spec", lambda _: None)
    monkeypatch.setattr(vllm, "find_spec", lambda _: None)
    monkeypatch.setattr(vllm, "PYTHON", tmp_path / "python")
    reports = [*checks.measure(SETUP), *vllm.measure(replace(SETUP, quick=False))]
    assert [report.text.partition("Not measured: ")[2] for report in reports] == [
        "there is no pytest in this environment.",
        "there is no vLLM on this machine.",
    ]


@dataclass
class _Server:
    """A server that does not answer by itself."""

    client: OpenAiClient = field(default_factory=lambda: OpenAiClient("http://127.0.0.1:1", "large"))

    def together(self, asks: Sequence[Ask], streams: int | None = None) -> Slice:
        return Slice(1.0, [])

    def memory(self) -> int:
        return 0

    def signal(self, number: Signals) -> None:
        """Do nothing."""


@contextmanager
def _started() -> Iterator[_Server]:
    yield _Server()


@contextmanager
def _broken() -> Iterator[_Server]:
    raise InternalError("RuntimeError: out of memory")
    yield _Server()


class _Client:
    """A client whose answers arrive at once."""

    def __init__(self) -> None:
        self.loads = list[Load]()

    def run(self, load: Load) -> Loaded:
        self.loads.append(load)
        drafts = load.requests[0].get("speculation")
        return Loaded(2.0, 400 if drafts else 200, [], 0, "", 0.0, "", None)


def test_a_system_that_fails_beside_vllm_leaves_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pair, "asks", lambda *_, **__: [Ask((1, 2), 8)] * 4)
    starts: dict[str, Callable[[], AbstractContextManager[_Server]]] = {
        BASE: _started, "ours, off": _started, "ours on vLLM, off": _broken
    }  # fmt: skip
    client = _Client()
    with Servers(starts) as servers:
        contest = vllm.Contest(Pair(Path(), Path()), servers, client, 8, 2)  # type: ignore[arg-type]
        speeds, failed = contest.speeds(4)
    assert speeds == {BASE: [100.0, 100.0], "ours, off": [200.0, 200.0]}
    assert failed == {"ours on vLLM, off": "RuntimeError: out of memory"}
    assert {len(load.requests) for load in client.loads} == {4}
    assert client.loads[0].address == "127.0.0.1:1"
