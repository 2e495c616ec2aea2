"""A draft model whose drafts local sources guess, against the model alone, in process: python -m benchmarks.guesses

All ways continue the same prompts in turn, at a fixed γ. Each has a row: its draft steps in a round, the steps that
guesses saved, c, and the tokens a CPU second over those of the model alone and over plain decoding.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer

from benchmarks.local import Local, load
from benchmarks.machine import ROOT
from benchmarks.pair import Pair
from benchmarks.reports.markdown import table
from benchmarks.reports.statistics import paired, spread
from benchmarks.run import Ask, Run
from drafter_service.app import load_drafter
from drafter_service.config import DrafterSettings
from drafter_service.sessions.drafter import DraftedRun, DraftedToken, Drafter, ScheduledSession, StepResult
from specdec.engine import NativeEngine

SOURCES = ("suffix", "ngram", "prompt_lookup")
_DEMO = ROOT / "models" / "demo"
_PROMPT = 256
_PENDING = 32
"""Most tokens before a draft that a step computes without reading a prompt."""
_ALONE, _PLAIN = "the model alone", "plain decoding"
_HEAD = ("guesses by", "steps a round", "saved a round", "c", "tokens/s over the model alone", "over plain decoding")


class Timed:
    """A drafter whose steps are counted and timed."""

    def __init__(self, drafter: Drafter) -> None:
        self.info, self.sequences = drafter.info, drafter.sequences
        self.steps = self.drafted = self.timed = 0
        """Number of steps, of the tokens that they drafted, and of those in steps that are timed."""
        self.seconds = 0.0
        """CPU time of the steps that read no prompt."""
        self._drafter = drafter

    def step(self, batch: Sequence[ScheduledSession]) -> Sequence[StepResult]:
        """Count a step of the drafter; see `Drafter`."""
        began = time.process_time()
        results = self._drafter.step(batch)
        drafted = sum(_tokens(result) for result in results)
        self.steps, self.drafted = self.steps + 1, self.drafted + drafted
        if all(each.count <= _PENDING for each in batch):
            self.timed, self.seconds = self.timed + drafted, self.seconds + time.process_time() - began
        return results


def _tokens(result: StepResult) -> int:
    return len(result.tokens) if isinstance(result, DraftedRun) else int(isinstance(result, DraftedToken))


class Way:
    """Decoding with one drafter, or without."""

    def __init__(self, target: NativeEngine, drafter: Drafter | None, gamma: int) -> None:
        self.drafter = None if drafter is None else Timed(drafter)
        self.runs: list[Run] = []
        self._local = Local(target, self.drafter, time.process_time)
        self._gamma = 0 if drafter is None else gamma

    def run(self, ask: Ask) -> None:
        """Generate, and keep the run."""
        self.runs.append(self._local.generate(Ask(ask.prompt, ask.tokens, ask.temperature, ask.seed, self._gamma)))


def measure(pair: Pair, asks: Sequence[Ask], gamma: int) -> Mapping[str, Way]:
    """Run every way on every ask. The first ask is a warm-up and is dropped."""
    target = load(pair.target)
    drafters: dict[str, Drafter | None] = {_PLAIN: None, _ALONE: _drafter(pair.drafter)}
    drafters |= {source: _drafter(pair.drafter, source) for source in SOURCES}
    for warm in (True, False):
        ways = {name: Way(target, drafter, gamma) for name, drafter in drafters.items()}
        for ask in asks[:1] if warm else asks[1:]:
            for way in ways.values():
                way.run(ask)
    return ways


def _drafter(path: Path, *local: str) -> Drafter:
    return load_drafter(DrafterSettings.load(None, {"model": {"path": path}, "local": local, "ahead": 0}))


def rows(ways: Mapping[str, Way]) -> list[list[str]]:
    """Return the rows of a table with _HEAD."""
    step = spread([second for run in ways[_PLAIN].runs for second in run.gaps]).value
    return [[name, *_numbers(way, way.drafter, ways, step)] for name, way in ways.items() if way.drafter is not None]


def _numbers(way: Way, drafter: Timed, ways: Mapping[str, Way], step: float) -> list[str]:
    """Return a row; `step` is the time of a plain round of the target."""
    rounds = sum(len(run.verdicts) for run in way.runs)
    pace = [run.pace for run in way.runs]
    over = [paired(pace, [run.pace for run in ways[other].runs]) for other in (_ALONE, _PLAIN)]
    saved, c = (drafter.drafted - drafter.steps) / rounds, drafter.seconds / drafter.timed / step
    return [f"{drafter.steps / rounds:.2f}", f"{saved:.2f}", f"{c:.3f}", *map(str, over)]


def main(
    target: Annotated[Path, typer.Option(help="Large model's folder.")] = _DEMO / "target",
    drafter: Annotated[Path, typer.Option(help="Small model's folder.")] = _DEMO / "drafter",
    prompts: Annotated[int, typer.Option(help="Number of held-out prompts.")] = 8,
    length: Annotated[int, typer.Option(help="Tokens of each output.")] = 128,
    gamma: Annotated[int, typer.Option(help="Draft length.")] = 6,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
) -> None:
    """Measure and print one row for each source of guesses."""
    torch.set_num_threads(1)
    pair = Pair(target.resolve(), drafter.resolve())
    asks = pair.asks(prompts + 1, _PROMPT, length, temperature)
    typer.echo(table(_HEAD, rows(measure(pair, asks, gamma))))


if __name__ == "__main__":
    typer.run(main)
