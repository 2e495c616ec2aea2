"""A real chat model through the whole system: `auto` with text sources, and with its draft head, against `off`."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.pair import Pair
from benchmarks.peers.servers import HttpServer, Servers, ours
from benchmarks.questions import Conversation, questions
from benchmarks.reports.results import Figure, Goal, Report, Table, figure
from benchmarks.reports.statistics import Ratio, paired, spread
from benchmarks.run import Ask, Slice
from benchmarks.sections.lab import Lab
from benchmarks.sections.scale import Scale, chat_target
from specdec.cli import known_models

KINDS = {"questions": ("multi_turn", "qa", "math_reasoning", "translation"), "texts": ("summarization", "rag")}
"""Categories of `spec_bench.jsonl` whose answers are new, and those whose answers repeat parts of the prompt."""
_GOALS = {("questions", 0.0): Goal(1.3), ("questions", 1.0): Goal(1.15), ("texts", 0.0): Goal(1.8)}
"""Goals of one stream with the best sources."""
_MANY = Goal(0.97)
_TEXT = """\
Questions of `benchmarks/spec_bench.jsonl` to {model} over HTTP, on `specdec up --target {model} --compile`, whose
verifier drafts by {sources}{head}. Each way answers the same turns, one after the other, `off` on the system of "text":
{turns} turns of one stream, fewer of several. "Texts" are summaries and answers from documents, which repeat parts of
the prompt. The speed of one stream is that after its first token; of several, tokens a second of all together, prompts
included. The first turn is a warm-up, with `auto` repeated until it has learned the load."""
_HEAD = ("kind", "temperature", "streams", "way", "speed / off", "tokens/s", "tokens a round")
OFF, TEXT, WITH_HEAD = "off", "text", "text, then head"


def measure(lab: Lab) -> Report:
    """Measure each kind of question at each temperature and number of streams."""
    scale = lab.scale
    folder = chat_target(scale)
    local = known_models.KNOWN[scale.chat].local if scale.chat else "prompt_lookup"
    head = known_models.find(f"{scale.chat}-head") if scale.chat else None
    common = partial(ours, Pair(folder, folder), *lab.arguments, "--drafters", "0", "--local", local)
    starts = {TEXT: common} | ({WITH_HEAD: partial(common, "--head", str(head))} if head else {})
    rows, figures = list[list[str]](), list[Figure]()
    with Servers(starts) as servers:
        for kind in KINDS:
            prompts = _prompts(folder, kind, scale)
            for temperature in scale.chat_temperatures:
                for streams in scale.chat_streams:
                    asks = [replace(ask, temperature=temperature) for ask in prompts]
                    found = _turns(servers, [*starts], asks, streams, scale)
                    speeds = {way: paired(*_speeds(found, way)) for way in starts}
                    rows += [[kind, f"{temperature:g}", str(streams), *_row(way, found)] for way in found]
                    figures.append(_figure(kind, temperature, streams, speeds))
    with_head = f', or by these and the head of this machine ("{WITH_HEAD}")' if head else ""
    text = _TEXT.format(model=folder.name, sources=local, head=with_head, turns=scale.chat_turns)
    return Report("chat", text, figures, [Table(_HEAD, rows)])


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
    servers: Servers[HttpServer], ways: Sequence[str], asks: Sequence[Ask], streams: int, scale: Scale
) -> dict[str, list[Slice]]:
    """Run all ways in turn. The warm-up is left out."""
    found: dict[str, list[Slice]] = {way: [] for way in (OFF, *ways)}
    for turn in range(_turns_of(streams, scale) + 1):
        mine = [asks[(turn * streams + each) % len(asks)] for each in range(streams)]
        for way in found if turn % 2 else reversed(found):
            with servers.asked(TEXT if way == OFF else way) as server:
                own = [replace(ask, gamma=0 if way == OFF else None) for ask in mine]
                repeats = max(1, round(scale.learning / 4)) if not turn and way != OFF else 1
                slices = [server.together(own) for _ in range(repeats)]
            found[way] += slices[-1:] if turn else []
    return found


def _turns_of(streams: int, scale: Scale) -> int:
    return max(1, scale.chat_turns // math.isqrt(streams))


def _speeds(found: dict[str, list[Slice]], way: str) -> tuple[list[float], list[float]]:
    return [_speed(each) for each in found[way]], [_speed(each) for each in found[OFF]]


def _speed(made: Slice) -> float:
    return made.speed if len(made.runs) > 1 else made.runs[0].pace


def _row(way: str, found: dict[str, list[Slice]]) -> list[str]:
    runs = [run for each in found[way] for run in each.runs]
    each_round = sum(len(run.tokens) for run in runs) / max(1, sum(run.rounds for run in runs))
    speed = spread([_speed(each) for each in found[way]]).value
    return [way, str(paired(*_speeds(found, way))), f"{speed:.0f}", f"{each_round:.2f}"]


def _figure(kind: str, temperature: float, streams: int, speeds: dict[str, Ratio]) -> Figure:
    """Return the speed of the last way, which has all sources that this machine has."""
    way, speed = list(speeds.items())[-1]
    goal = _GOALS.get((kind, temperature)) if streams == 1 else _MANY
    return figure(f"{kind}, T={temperature:g}, {streams} streams: {way} / off", speed, goal)
