"""Our engine and vLLM's on one core, without servers, gateway and store."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.machine import environment
from benchmarks.peers.batch import Batch, Engine
from benchmarks.peers.servers import vllm_environment
from benchmarks.reports.results import Figure, Goal, Report, Table, figure
from benchmarks.reports.statistics import Ratio, paired, spread
from benchmarks.sections.lab import Lab
from benchmarks.sections.peer_ways import PYTHON, SUFFIX
from specdec.cli.local.plan import PRELOAD
from specdec.cli.local.ports import Wanted, allot
from specdec.cli.local.processes import ChildCommand, Children
from specdec.errors import ConfigError

_TEXT = """\
The engines of [peers](#peers) alone, each with its scheduler, all processes on core {core}, measured in turns. There is
no server, gateway or store, and no text is produced. Ours is the compiled verifier without its servers, with its event
loop. Its drafter, and a target on vLLM, run in separate processes on the same core; "suffix" drafts in the verifier,
from the text of the request. vLLM 0.32 is `LLMEngine.step` in process, compiled by default, with drafts of {draft}
tokens where it drafts. All run in float32. An answer has {tokens} tokens after a prompt of {prompt}. Counting starts
when every answer has begun and ends with the first answer, so all streams are in every pass. Every turn has its own
prompts, which are the same for all engines. Before the counted turns each engine has one, and "auto" has {learning:g} s
of turns to learn the load."""
_BASE = "vLLM plain"
_DRAFTING = "vLLM draft model"
_DRAFT = 4
_STOP_SECONDS = 30.0
_HEAD = ("temperature", "streams", "engine", f"speed / {_BASE}", "tokens/s", "greedy answers as vLLM's")


@dataclass(frozen=True, slots=True)
class Way:
    """Settings of an engine."""

    engine: str
    gamma: int | None = None
    """Draft length: 0 for no drafts, None for the engine's own choice."""
    drafter: str = ""
    """Draft source of our engine, if it is not its drafter."""
    learns: bool = False
    """Whether the choice adapts to the load."""


WAYS: Mapping[str, Way] = {
    _BASE: Way(_BASE, 0),
    _DRAFTING: Way(_DRAFTING),
    "native, off": Way("native", 0),
    "native, auto": Way("native", learns=True),
    "native, suffix, auto": Way("native", drafter="suffix", learns=True),
    "ours on vLLM, off": Way("ours on vLLM", 0),
    "ours on vLLM, auto": Way("ours on vLLM", learns=True),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """All ways at one temperature and number of streams, in turns."""

    temperature: float
    streams: int
    done: Mapping[str, Sequence[Batch]]
    """The batches of each way, one for each turn."""

    def ratio(self, one: str, other: str = _BASE) -> Ratio | None:
        """Return the speed of `one` divided by that of `other` in the same turn, or None if one was not measured."""
        if one not in self.done or other not in self.done:
            return None
        return paired(*([each.speed for each in self.done[way]] for way in (one, other)))

    def rows(self) -> list[list[str]]:
        """Return a table's row for each way."""
        head = [f"{self.temperature:g}", str(self.streams)]
        return [[*head, way, str(self.ratio(way) or ""), *self._figures(way)] for way in self.done]

    def _figures(self, way: str) -> list[str]:
        """Return the tokens a second, and the number of greedy answers equal to those of vLLM without drafts."""
        own, base = self.done[way], self.done.get(_BASE, ())
        speed = f"{spread([each.speed for each in own]).value:.0f}"
        if self.temperature > 0.0 or not base:
            return [speed, ""]
        same = [
            one == other
            for mine, theirs in zip(own, base, strict=True)
            for one, other in zip(mine.outputs, theirs.outputs, strict=True)
        ]
        return [speed, f"{sum(same)} of {len(same)}"]


def measure(lab: Lab) -> Report:
    """Measure every cell.

    Raises:
        ConfigError: vLLM's environment is missing.
    """
    scale = lab.scale
    if any("vLLM" in name for name in scale.one_core) and not PYTHON.is_file():
        raise ConfigError("engines on vLLM need an environment of their own: run `make vllm`")
    core = max(os.sched_getaffinity(0))
    with ExitStack() as running:
        engines = running.enter_context(_engines(lab, core))
        cells = [
            _cell(lab, engines, temperature, streams)
            for temperature in scale.peers_temperatures
            for streams in scale.sessions
        ]
    text = _TEXT.format(
        core=core, draft=_DRAFT, tokens=scale.peers_tokens[0], prompt=scale.prompt, learning=scale.learning
    )
    return Report("one_core", text, _figures(cells), [Table(_HEAD, [row for cell in cells for row in cell.rows()])])


def _cell(lab: Lab, engines: Mapping[str, Engine], temperature: float, streams: int) -> Cell:
    """Run all ways, once as a warm-up and then in turns."""
    ways = {name: way for name, way in WAYS.items() if way.engine in engines}
    done: dict[str, list[Batch]] = {name: [] for name in ways}
    tokens, turns = lab.scale.peers_tokens[0], lab.scale.one_core_turns

    def made(way: Way, turn: int) -> Batch:
        asks = lab.scale.pair.asks(streams, lab.scale.prompt, tokens, temperature, first=turn * streams)
        return engines[way.engine].together([replace(ask, gamma=way.gamma, drafter=way.drafter) for ask in asks])

    for way in ways.values():
        _warm_up(partial(made, way), turns, lab.scale.learning if way.learns else 0.0)
    for turn in range(turns):
        for name in ways if turn % 2 else reversed(ways):
            done[name].append(made(ways[name], turn))
    return Cell(temperature, streams, done)


def _warm_up(made: Callable[[int], Batch], turns: int, seconds: float) -> None:
    """Run one turn with its own prompts, and further ones for `seconds`."""
    started = time.monotonic()
    for turn in count(turns):
        made(turn)
        if time.monotonic() - started >= seconds:
            break


def _figures(cells: Sequence[Cell]) -> list[Figure]:
    several = [cell for cell in cells if cell.streams > 1]
    greedy = [cell for cell in cells if cell.temperature == 0.0]
    return [
        *_worst(several, "native, off", _BASE, 0.9),
        *_worst(greedy, "native, auto", _DRAFTING, 1.2),
        *_worst(greedy, "native, suffix, auto", _DRAFTING, 1.2),
        *_worst(cells, "native, auto", "native, off", 0.97),
        *_worst(cells, "native, suffix, auto", "native, off", 0.97),
        *_worst(cells, "ours on vLLM, auto", _BASE, 0.97),
        *_worst(cells, "ours on vLLM, auto", "ours on vLLM, off", 0.97),
    ]


def _worst(cells: Sequence[Cell], one: str, other: str, goal: float) -> Iterator[Figure]:
    """Return the least ratio over the cells in which both ways were measured."""
    ratios = [ratio for cell in cells if (ratio := cell.ratio(one, other)) is not None]
    if ratios:
        least = min(ratios, key=lambda each: each.value)
        yield figure(f"{one} / {other}, worst of {len(ratios)} cells", least, Goal(goal))


@contextmanager
def _engines(lab: Lab, core: int) -> Iterator[Mapping[str, Engine]]:
    """Yield all engines by name, and the drafter of ours. They start on the core, which this process then leaves."""
    pair, cores = lab.scale.pair, os.sched_getaffinity(0)
    ((drafter,),) = allot([Wanted("", "127.0.0.1:0", 1)])
    alone = vllm_environment(PYTHON, SUFFIX) | {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": str(core),
        "OMP_NUM_THREADS": "1",
    }
    alone["PYTHONPATH"] = environment()["PYTHONPATH"]
    verifier = {
        "SPECDEC_VERIFIER_MODEL__PATH": str(pair.target),
        "SPECDEC_VERIFIER_MODEL__COMPILE": str(lab.scale.compiled).lower(),
        "SPECDEC_VERIFIER_DRAFTERS": json.dumps([drafter]),
        "SPECDEC_VERIFIER_THREADS": "1",
        "SPECDEC_VERIFIER_LOG__LEVEL": "warning",
    }
    drafts = {"method": "draft_model", "model": str(pair.drafter), "num_speculative_tokens": _DRAFT}
    starts = {
        _BASE: partial(_vllm, alone, pair.target, {}),
        _DRAFTING: partial(_vllm, alone, pair.target, drafts),
        "native": partial(_ours, sys.executable, environment() | verifier),
        "ours on vLLM": partial(_ours, str(PYTHON), alone | verifier | {"SPECDEC_VERIFIER_BACKEND": "vllm"}),
    }
    with ExitStack() as running:
        os.sched_setaffinity(0, {core})
        try:
            _start_drafter(running, lab, drafter)
            engines = {name: running.enter_context(starts[name]()) for name in lab.scale.one_core}
        finally:
            os.sched_setaffinity(0, cores)
        yield engines


def _vllm(variables: Mapping[str, str], model: Path, speculative: Mapping[str, object]) -> Engine:
    return Engine([str(PYTHON), "-m", "benchmarks.peers.batch_vllm", str(model), json.dumps(speculative)], variables)


def _ours(python: str, variables: Mapping[str, str]) -> Engine:
    return Engine([python, "-m", "benchmarks.peers.batch_ours"], variables)


def _start_drafter(running: ExitStack, lab: Lab, address: str) -> None:
    children = running.enter_context(Children(_STOP_SECONDS))
    log = Path(running.enter_context(TemporaryDirectory())) / "drafter"
    own = {
        "SPECDEC_DRAFTER_ADDRESS": address,
        "SPECDEC_DRAFTER_MODEL__PATH": str(lab.scale.pair.drafter),
        "SPECDEC_DRAFTER_MODEL__COMPILE": str(lab.scale.compiled).lower(),
    }
    argv = (sys.executable, "-m", "drafter_service")
    children.start(ChildCommand("drafter", "drafter", argv, log, "", PRELOAD["drafter"]), environment() | own)
