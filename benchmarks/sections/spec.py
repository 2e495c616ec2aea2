"""Spec-Bench: every draft source on six kinds of questions to a chat model, against decoding without drafts."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.drafters import load_drafter
from benchmarks.local import Local, load
from benchmarks.questions import Conversation, Question, questions
from benchmarks.reports.results import Chart, Figure, Report, Table, figure
from benchmarks.reports.statistics import Ratio, spread
from benchmarks.run import Ask, Run
from benchmarks.sections.lab import Lab
from benchmarks.sections.scale import Scale, chat_target
from drafter_service.sessions.drafter import Drafter
from specdec.cli import known_models
from specdec.engine import NativeEngine

OFF = "off"
_SOURCES = ("ngram", "prompt_lookup", "suffix")
_TEMPERATURES = (0.0, 0.7, 1.0)
_GAMMA = 4
_TEXT = """\
This project's own questions in Spec-Bench's six categories (`benchmarks/spec_bench.jsonl`), answered in process by
{target} in float32 on one thread, in mode rejection with γ = 4. Tokens a round are the accepted drafts and the token
after them. α at a position is the accepted share of the drafts there whose earlier drafts were accepted. A source
without a match drafts nothing, so its rounds may be plain. Speeds are tokens per second of CPU time after the prompt,
relative to `off` on the same question. All sources answer each question in turn."""
_HEAD = ("category", "temperature", "source", "tokens a round", "drafted a round", "α", "α by position", "speed / off")


@dataclass(frozen=True, slots=True)
class Cell:
    """Results of one source for one category at one temperature."""

    category: str
    temperature: float
    source: str
    runs: Sequence[Run]
    plain: Sequence[Run]

    def row(self) -> list[str]:
        """The cells of a table's row."""
        rounds = [each for run in self.runs for each in run.verdicts]
        drafted, accepted = (sum(column) / len(rounds) for column in zip(*rounds, strict=True))
        judged = [sum(column) for column in zip(*by_position(self.runs), strict=True)]
        shares = " ".join(_share(*place) for place in by_position(self.runs))
        speed = str(_speed([self]))
        first = [self.category, f"{self.temperature:g}", self.source]
        return [*first, f"{accepted + 1:.2f}", f"{drafted:.2f}", _share(*judged), shares, speed]


def by_position(runs: Sequence[Run]) -> list[tuple[int, int]]:
    """Return the numbers of accepted and of judged drafts for each position in a draft."""
    rounds = [each for run in runs for each in run.verdicts]
    return [
        (
            sum(accepted > place for _, accepted in rounds),
            sum(drafted > place and accepted >= place for drafted, accepted in rounds),
        )
        for place in range(_GAMMA)
    ]


def _speed(cells: Sequence[Cell]) -> Ratio:
    """Return the speed over `off`, for questions with more than the prompt's round on both sides.

    NaN if there are none.
    """
    pairs = [pair for cell in cells for pair in zip(cell.runs, cell.plain, strict=True)]
    ratios = [run.pace / plain.pace for run, plain in pairs if min(run.rounds, plain.rounds) > 1]
    return spread(ratios or [math.nan])


def _share(accepted: int, judged: int) -> str:
    return f"{accepted / judged:.2f}" if judged else "–"


def measure(lab: Lab) -> Report:
    """Measure every category at every temperature."""
    folder = chat_target(lab.scale)
    target, conversation = load(folder), Conversation(folder)
    count, tokens = lab.scale.spec
    cells = list[Cell]()
    for temperature in _TEMPERATURES:
        sides = {name: Local(target, each, time.process_time) for name, each in _drafters(lab.scale, folder).items()}
        for category, asked in questions(count).items():
            made: dict[str, list[Run]] = {name: [] for name in sides}
            for number, question in enumerate(asked):
                ask = Ask((), tokens, temperature, seed=number, stop=tuple(target.facts.end_token_ids))
                _answer(sides, made, conversation, target, question, ask)
            plain = made.pop(OFF)
            cells += [Cell(category, temperature, name, runs, plain) for name, runs in made.items()]
    tables = [Table(_HEAD, [cell.row() for cell in cells])]
    charts = [_chart(temperature, cells) for temperature in _TEMPERATURES]
    return Report("spec", _TEXT.format(target=folder.name), _figures(cells), tables, charts)


def _drafters(scale: Scale, folder: Path) -> Mapping[str, Drafter | None]:
    """Return new drafters, without state from another temperature. Use the chat model's own if it is here."""
    own = known_models.find(f"{scale.chat}-drafter") if scale.chat else scale.pair.drafter
    found: dict[str, Drafter | None] = {OFF: None}
    found |= {name: load_drafter(name, folder) for name in _SOURCES}
    return found | ({"model": load_drafter("model", own)} if own else {})


def _answer(
    sides: Mapping[str, Local],
    made: Mapping[str, list[Run]],
    conversation: Conversation,
    target: NativeEngine,
    question: Question,
    ask: Ask,
) -> None:
    """Let every side answer every turn. Earlier turns have the answers of plain decoding."""
    answers = list[tuple[int, ...]]()
    room = target.context_length - ask.tokens - _GAMMA - 2
    for _ in question.turns:
        prompt = conversation.prompt(question, answers)[-room:]
        for name, side in sides.items():
            made[name].append(side.generate(replace(ask, prompt=prompt, gamma=0 if name == OFF else _GAMMA)))
        answers.append(made[OFF][-1].tokens)


def _figures(cells: Sequence[Cell]) -> list[Figure]:
    """Return the speed of each source over all categories, at each temperature."""
    figures = []
    for temperature in _TEMPERATURES:
        for source in dict.fromkeys(cell.source for cell in cells):
            mine = [cell for cell in cells if (cell.temperature, cell.source) == (temperature, source)]
            figures.append(figure(f"T {temperature:g}, {source} / off", _speed(mine)))
    return figures


def _chart(temperature: float, cells: Sequence[Cell]) -> Chart:
    curves = dict[str, list[tuple[float, float]]]()
    for source in dict.fromkeys(cell.source for cell in cells):
        runs = [run for cell in cells if (cell.temperature, cell.source) == (temperature, source) for run in cell.runs]
        places = enumerate(by_position(runs), 1)
        curves[source] = [(float(place), kept / judged) for place, (kept, judged) in places if judged]
    return Chart(f"spec-{temperature:g}", f"position in the draft (temperature {temperature:g})", "α", curves)
