"""`python -m benchmarks.gpu`: the engine at the size of real models, on random weights, with forced acceptance.

Nothing is downloaded: both models are built from their shapes. Random models agree on nothing, so how many drafts a
round keeps is set (0.8 for each) and not judged; every pass, draft step and rollback is done as it would be.
"""

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
import typer
from rich.console import Console

from benchmarks import machine
from benchmarks.pages import publish
from benchmarks.random_pair import Bench, build, require_device
from benchmarks.results import Figure, Goal, Report, Table, figure, show
from benchmarks.statistics import paired, spread
from specdec.engine import Chunk, NativeEngine

_ACCEPTANCE = 0.8
_TEXT = """\
An 8B-shaped target and a 1B-shaped drafter with random weights in bfloat16 on one GPU, batch 1, in process. Random
models agree on nothing, so how many drafts a round keeps is set, with 0.8 for each, and not judged; every pass, draft
step and rollback is done as it would be. HF is `generate()` on another model of the target's sizes, with the
attention it would choose, not compiled."""
_NAME = "bench"


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of each part in each turn."""

    plain: list[float] = field(default_factory=list)
    speculative: list[float] = field(default_factory=list)
    peer: list[float] = field(default_factory=list)
    step: list[float] = field(default_factory=list)
    verify: list[float] = field(default_factory=list)


def measure(bench: Bench, context: int, tokens: int, gamma: int, repeats: int) -> Report:
    """The report of all figures; the parts run in turns, and the first turn is a warm-up."""
    _turn(bench, context, tokens, gamma, Times())
    times = Times()
    for _ in range(repeats):
        _turn(bench, context, tokens, gamma, times)
    limit = _bytes(bench.model) / _bandwidth(bench)
    text = f"{_TEXT}\n\n{tokens} tokens behind a prompt of {context}, drafts of {gamma}."
    return Report("gpu", text, _figures(times, limit, gamma), [_table(times, limit, tokens)])


def _turn(bench: Bench, context: int, tokens: int, gamma: int, times: Times) -> None:
    times.plain.append(bench.seconds(lambda: _plain(bench.target, context, tokens)))
    times.speculative.append(bench.seconds(lambda: _speculative(bench, context, tokens, gamma)))
    times.peer.append(bench.seconds(lambda: _hugging_face(bench, context, tokens)))
    times.step.append(_pass(bench, context, 1))
    times.verify.append(_pass(bench, context, gamma + 1))


def _figures(times: Times, limit: float, gamma: int) -> list[Figure]:
    share = spread([100.0 * limit / step for step in times.step])
    forced = f"acceptance forced to {_ACCEPTANCE}"
    return [
        figure("plain step, % of the weight-bandwidth limit (measured by copying)", share, Goal(70.0)),
        figure(f"verify {gamma + 1} tokens / 1", paired(times.verify, times.step), Goal(1.15, at_most=True)),
        figure(f"speculation / plain, {forced}", paired(times.plain, times.speculative), Goal(2.5)),
        figure(f"speculation / HF, {forced}", paired(times.peer, times.speculative), Goal(6.0)),
        figure("plain / HF", paired(times.peer, times.plain)),
    ]


def _table(times: Times, limit: float, tokens: int) -> Table:
    passes = {"weights read once": [limit], "plain step": times.step, "verify": times.verify}
    totals = {"plain": times.plain, "speculation": times.speculative, "HF": times.peer}
    return Table(
        ("what", "ms"),
        [
            *((name, f"{1000 * spread(seconds).value:.3f}") for name, seconds in passes.items()),
            *((f"{name}, a token", f"{1000 * spread(seconds).value / tokens:.3f}") for name, seconds in totals.items()),
        ],
    )


def _start(engine: NativeEngine, context: int, room: int) -> None:
    engine.admit(_NAME, context + room)
    engine.reserve(_NAME, context + room)
    engine.forward([Chunk(_NAME, [5] * context, 0)])


def _plain(engine: NativeEngine, context: int, tokens: int) -> None:
    _start(engine, context, tokens)
    token = 5
    for _ in range(tokens):
        token = int(engine.forward([Chunk(_NAME, [token], 1)]).argmax())
    engine.release(_NAME)


def _speculative(bench: Bench, context: int, tokens: int, gamma: int) -> None:
    """Draft, verify, keep some, roll both back; the tokens mean nothing, the work is real."""
    for engine in (bench.target, bench.drafter):
        _start(engine, context, tokens + 2 * gamma + 2)
    done = rounds = 0
    while done < tokens:
        drafts = _draft(bench.drafter, gamma)
        _verify(bench.target, Chunk(_NAME, [5, *drafts], gamma + 1))
        rounds += 1
        done += _kept(rounds, gamma) + 1
        for engine in (bench.target, bench.drafter):
            engine.truncate(_NAME, min(engine.length(_NAME), context + done))
    for engine in (bench.target, bench.drafter):
        engine.release(_NAME)


def _kept(number: int, gamma: int) -> int:
    """How many drafts a round keeps, of rounds 1, 2, …: multiples of the golden ratio are spread evenly in 0..1."""
    place = number * (math.sqrt(5) - 1) / 2 % 1
    return min(gamma, int(math.log(1 - place) / math.log(_ACCEPTANCE)))


def _draft(engine: NativeEngine, gamma: int) -> list[int]:
    drafts, token = list[int](), 5
    for _ in range(gamma):
        token = int(engine.forward([Chunk(_NAME, [token], 1)]).argmax())
        drafts.append(token)
    return drafts


def _hugging_face(bench: Bench, context: int, tokens: int) -> None:
    prompt = torch.full((1, context), 5, device=bench.device)
    with torch.inference_mode():
        bench.model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=tokens, do_sample=False, pad_token_id=0
        )


def _pass(bench: Bench, context: int, count: int) -> float:
    """Seconds of one pass over `count` tokens, the median of several."""
    _start(bench.target, context, count)
    times = list[float]()
    for _ in range(10):
        times.append(
            bench.seconds(lambda: bench.target.forward([Chunk(_NAME, [5] * count, count)]).argmax(-1).tolist())
        )
        bench.target.truncate(_NAME, context)
    bench.target.release(_NAME)
    return spread(times[2:]).value


def _verify(engine: NativeEngine, chunk: Chunk) -> list[int]:
    """The likeliest token after each of a chunk's, on the host."""
    best: list[int] = engine.forward([chunk]).argmax(-1).tolist()
    return best


def _bytes(model: Any) -> int:
    """Weights a step reads: all but the table that one row is taken of."""
    table = model.get_input_embeddings().weight
    return int(sum(weight.nbytes for weight in model.parameters()) - table.nbytes)


def _bandwidth(bench: Bench) -> float:
    """Bytes a second of a large copy, which reads and writes."""
    size = 2**32 if bench.device.type == "cuda" else 2**26
    source = torch.empty(size, dtype=torch.uint8, device=bench.device)
    sink = torch.empty_like(source)
    return 2 * size / min(bench.seconds(lambda: sink.copy_(source)) for _ in range(8))


def main(  # noqa: PLR0913 - one for each option
    shape: Annotated[Literal["8b", "tiny"], typer.Option(help="Of the models.")] = "8b",
    device: Annotated[Literal["cuda", "cpu"], typer.Option(help="Where to run.")] = "cuda",
    tokens: Annotated[int, typer.Option(help="Of an output.")] = 128,
    context: Annotated[int, typer.Option(help="Tokens before it.")] = 256,
    gamma: Annotated[int, typer.Option(help="Draft length.")] = 5,
    repeats: Annotated[int, typer.Option(help="Of every run.")] = 3,
    compiled: Annotated[bool, typer.Option("--compile/--no-compile", help="Our models, as `model.compile`.")] = True,
) -> None:
    """Measure, show and keep the figures."""
    require_device(device)
    load = machine.load()
    report = measure(build(shape, torch.device(device), compiled=compiled), context, tokens, gamma, repeats)
    if shape == "8b" and device == "cuda":
        publish(report, "python -m benchmarks.gpu", load=load)
    else:
        show(Console(width=100), report)


if __name__ == "__main__":
    typer.run(main)
