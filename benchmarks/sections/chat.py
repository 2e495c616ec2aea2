"""A real chat model through the whole system: `auto` with text sources, and with its draft head, against `off`."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.pair import Pair
from benchmarks.peers.servers import HttpServer, Servers, ours
from benchmarks.questions import Conversation, questions
from benchmarks.reports.kept import Kept
from benchmarks.reports.results import Figure, Goal, Report, Table, figure
from benchmarks.reports.statistics import paired, spread
from benchmarks.run import Ask, Slice
from benchmarks.sections.lab import Lab
from benchmarks.sections.scale import Scale, chat_target
from specdec.cli import known_heads, known_models

KINDS = {"questions": ("multi_turn", "qa", "math_reasoning", "translation"), "texts": ("summarization", "rag")}
"""Categories of `spec_bench.jsonl` whose answers are new, and those whose answers repeat parts of the prompt."""
_GOALS = {("questions", 0.0): Goal(1.3), ("questions", 1.0): Goal(1.15), ("texts", 0.0): Goal(1.8)}
"""Goals of one stream with the best sources."""
_FEWEST = 3
"""Fewest turns of several streams."""
_MANY, _APART = Goal(0.97), Goal(0.95)
"""Goals of several streams, and of a head in a drafter relative to the same head in the verifier."""
_TEXT = """\
Questions of `benchmarks/spec_bench.jsonl` to {model} over HTTP, on `specdec up --target {model} --compile`, whose
verifier drafts by {sources}{head}. Each way answers the same turns, one after the other, `off` on the system of "text":
{turns} turns of one stream, fewer of several. "Texts" are summaries and answers from documents, which repeat parts of
the prompt. The speed of one stream is that after its first token; of several, tokens a second of all together, prompts
included. The first turn is a warm-up, with `auto` repeated until it has learned the load."""
_WITH_HEAD = """\
, or by these and then its head ("{both}"). One stream also drafts by the head alone, in the verifier ("{head}") and in
a drafter ("{remote}")"""
_HEADER = ("kind", "temperature", "streams", "way", "speed / off", "tokens/s", "tokens a round")
OFF, TEXT, WITH_HEAD, HEAD, REMOTE = "off", "text", "text, then head", "head", "head in a drafter"
_Start = Callable[[], AbstractContextManager[HttpServer]]
_SYSTEMS = {OFF: TEXT, HEAD: WITH_HEAD}
"""System that answers a way, where it is not the way's own."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One load."""

    kind: str
    temperature: float
    streams: int

    @property
    def name(self) -> str:
        return f"{self.kind}, T={self.temperature:g}, {self.streams} streams"

    def ways(self, head: Path | None) -> Sequence[str]:
        """Return the ways with drafts: all of one stream, and the default sources of several."""
        alone = (HEAD, REMOTE) if self.streams == 1 and self.kind == "questions" else ()
        return (TEXT,) if head is None else (TEXT, WITH_HEAD, *alone)


@dataclass(frozen=True, slots=True)
class Turn:
    """Answers of one way to one turn."""

    speed: float
    """Tokens a second."""
    tokens: int
    rounds: int


def measure(lab: Lab) -> Report:
    """Measure each kind of question at each temperature and number of streams.

    Several streams are measured on questions only. Cells whose name does not contain `scale.only` are left out.
    """
    scale = lab.scale
    folder, kept = chat_target(scale), Kept.at_commit("chat", resume=scale.resume)
    local = known_models.KNOWN[scale.chat].local if scale.chat else "prompt_lookup"
    head = known_heads.find(scale.chat) if scale.chat else None
    rows, figures = list[list[str]](), list[Figure]()
    with Servers(_starts(lab, folder, local, head)) as servers:
        for cell in _cells(scale):
            measured = partial(_turns, servers, cell, cell.ways(head), folder, scale)
            stored = kept.once([str(head), *asdict(cell).values()], measured)
            found = {way: [Turn(**each) for each in turns] for way, turns in stored.items()}
            rows += [[cell.kind, f"{cell.temperature:g}", str(cell.streams), *_row(way, found)] for way in found]
            figures += _figures(cell, found)
    with_head = _WITH_HEAD.format(both=WITH_HEAD, head=HEAD, remote=REMOTE) if head else ""
    text = _TEXT.format(model=folder.name, sources=local, head=with_head, turns=scale.chat_turns)
    return Report("chat", text, figures, [Table(_HEADER, rows)])


def _cells(scale: Scale) -> list[Cell]:
    cells = [
        Cell(kind, temperature, streams)
        for streams in scale.chat_streams
        for kind in (KINDS if streams == 1 else ("questions",))
        for temperature in scale.chat_temperatures
    ]
    return [cell for cell in cells if scale.only in cell.name]


def _starts(lab: Lab, folder: Path, local: str, head: Path | None) -> dict[str, _Start]:
    """Return how each system starts."""
    common = partial(ours, Pair(folder, folder), *lab.arguments)
    text = partial(common, "--drafters", "0", "--local", local)
    if head is None:
        return {TEXT: text}
    remote = partial(common, "--drafters", "1", "--drafter-kind", "head", "--head", str(head))
    return {TEXT: text, WITH_HEAD: partial(text, "--head", str(head)), REMOTE: remote}


def _prompts(folder: Path, kind: str, scale: Scale) -> Sequence[Ask]:
    """Return the first turns of a kind's questions, a category after the other."""
    if not scale.chat:
        return scale.pair.asks(scale.asks, scale.prompt, scale.chat_tokens)
    conversation, asked = Conversation(folder), questions(scale.chat_turns * max(scale.chat_streams))
    several = [each for name in KINDS[kind] for each in asked[name]]
    stride = max(1, len(several) // (scale.chat_turns + 1))
    ordered = [several[place] for start in range(stride) for place in range(start, len(several), stride)]
    return [Ask(conversation.prompt(each, ()), scale.chat_tokens, seed=n) for n, each in enumerate(ordered)]


def _turns(
    servers: Servers[HttpServer], cell: Cell, ways: Sequence[str], folder: Path, scale: Scale
) -> dict[str, list[Turn]]:
    """Run all ways in turn. The warm-up is left out."""
    asks = [replace(ask, temperature=cell.temperature) for ask in _prompts(folder, cell.kind, scale)]
    found: dict[str, list[Turn]] = {way: [] for way in (OFF, *ways)}
    for turn in range(_turns_of(cell.streams, scale) + 1):
        mine = [asks[(turn * cell.streams + each) % len(asks)] for each in range(cell.streams)]
        for way in found if turn % 2 else reversed(found):
            with servers.asked(_SYSTEMS.get(way, way)) as server:
                repeats = max(1, round(scale.learning / 4)) if not turn and way != OFF else 1
                slices = [server.client.together(mine, _fields(way, server)) for _ in range(repeats)]
            found[way] += [_turn(each) for each in slices[-1:]] if turn else []
    return found


def _fields(way: str, server: HttpServer) -> Mapping[str, Any]:
    """Return the fields of a way's requests."""
    if way == OFF:
        return server.off
    return {"speculation": {"drafter": "head"}} if way == HEAD else {}


def _turns_of(streams: int, scale: Scale) -> int:
    return min(scale.chat_turns, max(_FEWEST, scale.chat_turns // math.isqrt(streams)))


def _turn(made: Slice) -> Turn:
    speed = made.speed if len(made.runs) > 1 else made.runs[0].pace
    return Turn(speed, sum(len(run.tokens) for run in made.runs), sum(run.rounds for run in made.runs))


def _speeds(turns: Sequence[Turn]) -> list[float]:
    return [each.speed for each in turns]


def _row(way: str, found: Mapping[str, Sequence[Turn]]) -> list[str]:
    own = found[way]
    each_round = sum(each.tokens for each in own) / max(1, sum(each.rounds for each in own))
    ratio = paired(_speeds(own), _speeds(found[OFF]))
    return [way, str(ratio), f"{spread(_speeds(own)).value:.0f}", f"{each_round:.2f}"]


def _figures(cell: Cell, found: Mapping[str, Sequence[Turn]]) -> list[Figure]:
    """Return the speed with all default sources of this machine, and the cost of hop 2 for a head."""
    way = WITH_HEAD if WITH_HEAD in found else TEXT
    goal = _GOALS.get((cell.kind, cell.temperature)) if cell.streams == 1 else _MANY
    figures = [figure(f"{cell.name}: {way} / off", paired(_speeds(found[way]), _speeds(found[OFF])), goal)]
    if REMOTE in found:
        ratio = paired(_speeds(found[REMOTE]), _speeds(found[HEAD]))
        figures.append(figure(f"{cell.name}: {REMOTE} / {HEAD}", ratio, _APART))
    return figures
