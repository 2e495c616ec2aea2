"""The host path: many streams on a one-layer target, which makes model arithmetic negligible, compared with vLLM."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from transformers import AutoTokenizer

from benchmarks.host_path.cells import CPU_HEAD, SPEED_HEAD, Cell, Outcome, Turn, turn_of
from benchmarks.host_path.load import Client, Load
from benchmarks.host_path.target import Cycles, make_target
from benchmarks.machine import environment
from benchmarks.pair import Pair
from benchmarks.peers.cells import BASE, reason_of
from benchmarks.peers.servers import HttpServer, Servers, ours, vllm_alone
from benchmarks.reports.kept import Kept
from benchmarks.reports.results import Figure, Goal, Report, Table, figure
from benchmarks.reports.statistics import paired
from benchmarks.sections.lab import Lab
from benchmarks.sections.peer_ways import PYTHON, SUFFIX
from benchmarks.sections.peers import on_cores
from benchmarks.sections.scale import Scale
from specdec.errors import ConfigError, InternalError

_TEXT = """\
What a token costs outside of the model: the target has one layer, so that nearly all of the time is the host's. Its
greedy tokens go round in known cycles of {cycle}, and the first answer of each slice is checked. Streams send token ids
to `/v1/completions` and ask again when their answer has ended. An answer has {tokens} greedy tokens after a prompt of
{prompt}, and a slice has at least {answers} answers. The systems take turns on the cores {cores}, and one that is not
asked is stopped; figures are the medians of {turns} turns, with their middle half. "3 a round" has drafts of 2 tokens
by a source that is always right, in the verifier or in a drafter. CPU is what the kernel counts for the processes of a
system. The client shares the cores, and its CPU does not count. vLLM has room for all streams
(`--max-num-seqs {most}`), and is otherwise as it comes. A request is refused when it has no whole answer."""
_OFF, _ROUNDS = "ours, off", "ours, 3 a round"
_MANY, _MOST = 256, 1024
"""Numbers of streams that have goals."""


@dataclass(frozen=True, slots=True)
class Way:
    """Settings of requests to a server."""

    server: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Additional fields of a request."""


WAYS: Mapping[str, Way] = {
    BASE: Way(BASE),
    _OFF: Way("ours", {"speculation": {"mode": "off"}}),
    _ROUNDS: Way("ours", {"speculation": {"gamma": 2, "drafter": "prompt_lookup"}}),
    f"{_ROUNDS}, drafter": Way("ours", {"speculation": {"gamma": 2, "drafter": "ngram"}}),
}


@dataclass(frozen=True, slots=True)
class Asked:
    """Requests to the target."""

    folder: Path
    cycles: Cycles
    tokens: int
    """Tokens of an answer."""

    def load(self, server: HttpServer, way: Way, streams: int, answers: int, *, streamed: bool) -> Load:
        """Return a load of that many answers over that many streams."""
        shared: dict[str, Any] = {
            "model": server.client.model, "max_tokens": self.tokens, "temperature": 0.0, "ignore_eos": True,
            "stream": streamed, **({"stream_options": {"include_usage": True}} if streamed else {}), **way.fields,
        }  # fmt: skip
        requests = [{**shared, "prompt": self.cycles.prompt(number)} for number in range(answers)]
        return Load(urlsplit(server.client.url).netloc, requests, streams)

    @property
    def expected(self) -> str:
        """The text of the first answer."""
        return str(_tokenizer(self.folder).decode(self.cycles.continuation(0, self.tokens)))


@cache
def _tokenizer(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


def measure(lab: Lab) -> Report:
    """Measure every cell. Each is stored as soon as it is measured."""
    scale = lab.scale
    if BASE in scale.host_path and not PYTHON.is_file():
        raise ConfigError("vLLM needs an environment of its own: run `make vllm`")
    kept = Kept.at_commit("host_path", resume=scale.resume)
    with ExitStack() as running:
        cores = running.enter_context(on_cores())
        folder = Path(running.enter_context(TemporaryDirectory())) / "one-layer"
        asked = Asked(folder, make_target(scale.pair.target, folder), scale.host_path_tokens)
        starts = {name: start for name, start in _starts(lab, folder).items() if name in scale.host_path}
        servers = running.enter_context(Servers(starts))
        client = running.enter_context(Client(environment()))
        contest = Contest(scale, asked, servers, client)
        wanted = [(streams, streamed) for streams in scale.host_path_streams for streamed in (False, True)]
        cells = [contest.cell(*each, kept) for each in wanted]
    text = _TEXT.format(
        cycle=len(asked.cycles.cycles[0]), prompt=len(asked.cycles.prompt(0)), tokens=asked.tokens,
        answers=scale.host_path_answers, cores=cores, turns=scale.host_path_turns, most=max(scale.host_path_streams),
    )  # fmt: skip
    speeds, costs = ([row for cell in cells for row in rows(cell)] for rows in (Cell.speed_rows, Cell.cpu_rows))
    return Report("host_path", text, list(_figures(cells)), [Table(SPEED_HEAD, speeds), Table(CPU_HEAD, costs)])


def _starts(lab: Lab, target: Path) -> Mapping[str, Callable[[], AbstractContextManager[HttpServer]]]:
    drafters = ("--drafter-kind", "ngram", "--local", "prompt_lookup")
    room = ("--max-num-seqs", str(max(lab.scale.host_path_streams)))
    return {
        BASE: partial(vllm_alone, PYTHON, SUFFIX, target, {}, *room),
        "ours": partial(ours, Pair(target, target), *lab.arguments, *drafters),
    }


@dataclass(frozen=True, slots=True)
class Contest:
    """The systems that run in turn."""

    scale: Scale
    asked: Asked
    servers: Servers[HttpServer]
    client: Client

    @property
    def ways(self) -> Mapping[str, Way]:
        """Return the ways of the compared servers."""
        return {name: way for name, way in WAYS.items() if way.server in self.scale.host_path}

    def cell(self, streams: int, streamed: bool, kept: Kept) -> Cell:
        """Return a cell, measured or stored."""
        turns, answers = self.scale.host_path_turns, self.scale.host_path_answers
        key = (streams, streamed, self.asked.tokens, answers, turns, *self.ways)
        found = kept.once(key, partial(self._outcomes, streams, streamed=streamed))
        cell = Cell(streams, streamed, {name: _outcome(each) for name, each in found.items()})
        for row in (*cell.speed_rows(), *cell.cpu_rows()):
            sys.stderr.write(f"host_path: {', '.join(row)}\n")
        return cell

    def _outcomes(self, streams: int, *, streamed: bool) -> dict[str, dict[str, Any]]:
        """Return each way's outcome in stored form.

        The first turn is a warm-up, and a way that failed gets no more turns.
        """
        turns, failed = {name: list[Turn]() for name in self.ways}, dict[str, str]()
        for number in range(self.scale.host_path_turns + 1):
            for name in turns if number % 2 else reversed(turns):
                if name in failed:
                    continue
                try:
                    turns[name].append(self._turn(self.ways[name], streams, streamed=streamed, warm=number > 0))
                except InternalError as error:
                    failed[name] = error.message
        return {
            name: asdict(Outcome(reason=reason_of(failed[name])) if name in failed else Outcome(each[1:]))
            for name, each in turns.items()
        }

    def _turn(self, way: Way, streams: int, *, streamed: bool, warm: bool) -> Turn:
        """Run a slice of one way. As a warm-up, each stream has one answer."""
        answers = max(streams, self.scale.host_path_answers) if warm else streams
        with self.servers.asked(way.server) as server:
            load = self.asked.load(server, way, streams, answers, streamed=streamed)
            before = server.cpu_seconds()
            loaded = self.client.run(load)
            after = server.cpu_seconds()
        if loaded.refused:
            sys.stderr.write(f"host_path: {loaded.refused} of {answers} refused: {loaded.reason}\n")
        cpu = {role: max(0.0, seconds - before.get(role, 0.0)) for role, seconds in after.items()}
        return turn_of(loaded, cpu, answers, self.asked.expected)


def _outcome(kept: Mapping[str, Any]) -> Outcome:
    return Outcome([Turn(**turn) for turn in kept["turns"]], kept["reason"])


def _figures(cells: Sequence[Cell]) -> Iterator[Figure]:
    """Yield the figures with goals, if measured."""
    turns = [turn for cell in cells for outcome in cell.outcomes.values() for turn in outcome.turns]
    right = sum(turn.right for turn in turns)
    yield Figure("first answers as known", f"{right} of {len(turns)}", "all", "yes" if right == len(turns) else "no")
    found = {(cell.streams, cell.streamed): cell for cell in cells}
    for (streams, _), cell in found.items():
        ratio = cell.ratio(_OFF)
        if ratio and streams in (64, _MANY):
            yield figure(f"{_OFF} / {BASE}, {streams} streams, {cell.answers}", ratio, Goal(1.0, aim=1.5))
    for streamed in (False, True):
        few, most = (found.get((streams, streamed)) for streams in (64, _MOST))
        if few and most and few.turns(_OFF) and most.turns(_OFF):
            ratio = paired(*([turn.speed for turn in each.turns(_OFF)] for each in (most, few)))
            yield figure(f"{_OFF}: {_MOST} streams / 64, {most.answers}", ratio, Goal(1.0))
    yield from _refused([found[key] for key in ((_MOST, False), (_MOST, True)) if key in found])
    if many := found.get((_MANY, True)):
        yield from _costs(many)


def _refused(cells: Sequence[Cell]) -> Iterator[Figure]:
    """Yield the number of requests that ours refused in all cells, if measured."""
    if turns := [turn for cell in cells for name in (_OFF, _ROUNDS) for turn in cell.turns(name)]:
        refused, asked = sum(turn.refused for turn in turns), sum(turn.asked for turn in turns)
        yield Figure(f"ours: refused, {_MOST} streams", f"{refused} of {asked}", "0", "no" if refused else "yes")


def _costs(cell: Cell) -> Iterator[Figure]:
    """Yield the CPU time per token and the time to the first token of streamed answers."""
    where = f"{cell.streams} streams, {cell.answers}"
    for name, limit in ((_OFF, 100.0), (_ROUNDS, 50.0)):
        if cell.turns(name):
            yield figure(f"{name}: CPU µs a token, {where}", cell.outcomes[name].cost, Goal(limit, at_most=True))
    for at, share in enumerate(("p50", "p95")):
        mine, theirs = ([turn.first[at] for turn in cell.turns(name) if turn.first] for name in (_OFF, BASE))
        if mine and theirs and len(mine) == len(theirs):
            what = f"{_OFF} / {BASE}: first token {share}, {where}"
            yield figure(what, paired(mine, theirs), Goal(1.2, at_most=True))
