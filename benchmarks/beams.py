"""Speculative beam search against plain beam search, on a pair in process: python -m benchmarks.beams

Both search the same prompts in turn with the same engine, and must find what `generate()` of transformers finds. Each
width has a row: the steps for each pass of the target, the share of accepted steps, and the CPU time of plain search
over that of speculative search.
"""

import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from transformers import AutoModelForCausalLM

from benchmarks.local import load
from benchmarks.machine import ROOT
from benchmarks.pair import Pair
from benchmarks.paper.closed import markdown
from benchmarks.reports.statistics import Ratio, paired
from drafter_service.drafters.beam_drafter import propose_beams
from drafter_service.sessions.drafter import run_beams
from specdec.beams.options import BeamOptions
from specdec.beams.search import BeamSearch
from specdec.engine import NativeEngine
from specdec.errors import InternalError
from specdec.wire.beams import MOST_NODES, BeamAsk
from verifier_service.beams.target_beams import TargetBeams

WIDTHS = (2, 4, 8)
_WIDER = 2
"""Proposed beams of a step for each beam of the search, u / w, as in the services."""
_CHUNK = 512
_DEMO = ROOT / "models" / "demo"
_SAME = 1e-4
"""Largest difference of a score from that of transformers."""
_HEAD = ("width", "steps a pass", "accepted steps", "speed over plain search")


@dataclass(frozen=True, slots=True)
class Size:
    """Numbers of prompts and tokens to measure."""

    prompts: int
    prompt: int
    """Tokens of a prompt."""
    tokens: int
    gamma: int = 3


@dataclass(frozen=True, slots=True)
class Run:
    """One search."""

    tokens: tuple[int, ...]
    score: float
    steps: int
    passes: int
    seconds: float
    """CPU time."""


@dataclass(frozen=True, slots=True)
class Found:
    """All searches of one width."""

    width: int
    steps: int
    passes: int
    speed: Ratio


def measure(pair: Pair, size: Size) -> Iterator[Found]:
    """Search at each width.

    Raises:
        InternalError: a search found something else than `generate()`.
    """
    target, drafter = load(pair.target), load(pair.drafter)
    plain = AutoModelForCausalLM.from_pretrained(pair.target, dtype=torch.float32, local_files_only=True).eval()
    prompts = [ask.prompt for ask in pair.asks(size.prompts, size.prompt, size.tokens)]
    for width in WIDTHS:
        pairs = []
        for prompt in prompts:
            both = tuple(search(target, each, prompt, width, size.tokens, size.gamma) for each in (None, drafter))
            tokens, score = _generated(plain, prompt, width, size.tokens, sorted(target.facts.end_token_ids))
            if any(run.tokens != tokens or not math.isclose(run.score, score, abs_tol=_SAME) for run in both):
                raise InternalError(f"width {width}: another result than generate()")
            pairs.append(both)
        drafted = [run for _, run in pairs]
        speed = paired([run.seconds for run, _ in pairs], [run.seconds for run in drafted])
        yield Found(width, sum(run.steps for run in drafted), sum(run.passes for run in drafted), speed)


def search(
    target: NativeEngine, drafter: NativeEngine | None, prompt: Sequence[int], width: int, length: int, gamma: int
) -> Run:
    """Search for the continuation of a prompt, with the proposals of `drafter` if there is one."""
    began, passes = time.process_time(), 0
    ends = frozenset(target.facts.end_token_ids)
    state = BeamSearch(BeamOptions(width), ends, length)
    beams, steps = TargetBeams("beams", target, prompt, len(prompt) + length, "", _CHUNK), 0
    while not state.done:
        left = min(gamma, MOST_NODES // (_WIDER * width), length - state.length - 1)
        running = tuple((beam.tokens, beam.score) for beam in state.running)
        ask = BeamAsk("", tuple(prompt), running, _WIDER * width, left, tuple(ends))
        proposed = run_beams(propose_beams(drafter, ask, _CHUNK)) if drafter is not None and left > 0 else ()
        state, more = beams.advance(state, proposed)
        steps, passes = steps + more, passes + 1
    beams.release()
    return Run(state.best.tokens, state.best.score, steps, passes, time.process_time() - began)


def _generated(
    model: Any, prompt: Sequence[int], width: int, length: int, ends: list[int]
) -> tuple[tuple[int, ...], float]:
    """Return the tokens and the score that transformers finds."""
    ids = torch.tensor([prompt])
    made = model.generate(
        ids, attention_mask=torch.ones_like(ids), num_beams=width, do_sample=False, max_new_tokens=length,
        eos_token_id=ends, pad_token_id=0, output_scores=True, return_dict_in_generate=True,
    )  # fmt: skip
    return tuple(made.sequences[0, len(prompt) :].tolist()), float(made.sequences_scores[0])


def render(found: Sequence[Found], size: Size) -> str:
    """Return the conditions and the table."""
    rows = [
        [str(each.width), f"{each.steps / each.passes:.2f}", f"{1 - each.passes / each.steps:.2f}", str(each.speed)]
        for each in found
    ]
    conditions = (
        f"u = {_WIDER}w and γ = {size.gamma}; {size.prompts} held-out prompts of {size.prompt} tokens, continued by "
        f"{size.tokens} tokens. Load average at the end {os.getloadavg()[0]:.1f}."
    )
    return f"{conditions}\n\n{markdown(_HEAD, rows)}"


def main(
    target: Annotated[Path, typer.Option(help="Large model's folder.")] = _DEMO / "target",
    drafter: Annotated[Path, typer.Option(help="Small model's folder.")] = _DEMO / "drafter",
    prompts: Annotated[int, typer.Option(help="Number of held-out prompts.")] = 12,
    length: Annotated[int, typer.Option(help="Tokens of each output.")] = 32,
    gamma: Annotated[int, typer.Option(help="Steps to propose.")] = 3,
) -> None:
    """Measure and print one row for each width."""
    pair = Pair(target.resolve(), drafter.resolve())
    size = Size(prompts, 16, length, gamma)
    typer.echo(render(list(measure(pair, size)), size))


if __name__ == "__main__":
    typer.run(main)
