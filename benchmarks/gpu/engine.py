"""The engine at the size of real models, with random weights and forced acceptance.

Nothing is downloaded: both models are built from their shapes. Random models never agree, so the acceptance rate is set
to 0.8 per draft instead of judged. Every pass, draft step and rollback is real.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from benchmarks.gpu.random_pair import Bench, build
from benchmarks.gpu.setup import Setup
from benchmarks.reports.results import Figure, Goal, Report, Table, figure
from benchmarks.reports.statistics import paired, spread
from specdec.engine import Chunk, NativeEngine

_ACCEPTANCE = 0.8
_TEXT = """\
An 8B-shaped target and a 1B-shaped drafter with random weights in bfloat16 on one GPU, batch 1, in process. Random
models agree on nothing, so how many drafts a round keeps is set, with 0.8 for each, and not judged; every pass, draft
step and rollback is done as it would be. HF is `generate()` on another model of the target's sizes, with the
attention it would choose, not compiled."""
_NAME = "bench"


@dataclass(frozen=True, slots=True)
class Case:
    """Lengths of prompt, output and draft, and number of runs."""

    context: int = 256
    """Tokens before the output."""
    tokens: int = 128
    """Tokens of the output."""
    gamma: int = 5
    repeats: int = 3


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of each part in each turn."""

    plain: list[float] = field(default_factory=list)
    speculative: list[float] = field(default_factory=list)
    peer: list[float] = field(default_factory=list)
    step: list[float] = field(default_factory=list)
    verify: list[float] = field(default_factory=list)
    draft: list[float] = field(default_factory=list)
    """Step of the drafter."""


def measure(setup: Setup) -> Iterator[Report]:
    """Report all figures. The parts run in turns, and the first turn is a warm-up."""
    case = Case(4, 4, repeats=1) if setup.quick else Case()
    bench = build(setup.shape, torch.device(setup.device), compiled=setup.compiled)
    _turn(bench, case, Times())
    times = Times()
    for _ in range(case.repeats):
        _turn(bench, case, times)
    bandwidth = _bandwidth(bench)
    target, drafter = (size / bandwidth for size in (bench.target_bytes, bench.drafter_bytes))
    text = f"{_TEXT}\n\n{case.tokens} tokens after a prompt of {case.context}, drafts of {case.gamma}."
    figures = _figures(times, target, drafter, case.gamma)
    yield Report("gpu", text, figures, [_table(times, target, drafter, case.tokens)])


def _turn(bench: Bench, case: Case, times: Times) -> None:
    times.plain.append(bench.seconds(lambda: _plain(bench.target, case)))
    times.speculative.append(bench.seconds(lambda: _speculative(bench, case)))
    times.peer.append(bench.seconds(lambda: _hugging_face(bench, case)))
    times.step.append(_pass(bench, case.context, 1))
    times.verify.append(_pass(bench, case.context, case.gamma + 1))
    times.draft.append(_draft_step(bench, case))


def _figures(times: Times, target: float, drafter: float, gamma: int) -> list[Figure]:
    """Return the figures. `target` and `drafter` are the seconds to read the weights of each once."""
    share = spread([100.0 * target / step for step in times.step])
    drafting = spread([step / drafter for step in times.draft])
    forced = f"acceptance forced to {_ACCEPTANCE}"
    return [
        figure("plain step, % of the weight-bandwidth limit (measured by copying)", share, Goal(80.0)),
        figure("drafter's step / its weight-bandwidth limit", drafting, Goal(1.25, at_most=True)),
        figure(f"verify {gamma + 1} tokens / 1", paired(times.verify, times.step), Goal(1.15, at_most=True)),
        figure(f"speculation / plain, {forced}", paired(times.plain, times.speculative), Goal(2.0, aim=2.5)),
        figure(f"speculation / HF, {forced}", paired(times.peer, times.speculative), Goal(6.0)),
        figure("plain / HF", paired(times.peer, times.plain)),
    ]


def _table(times: Times, target: float, drafter: float, tokens: int) -> Table:
    passes = {
        "weights read once": [target], "plain step": times.step, "verify": times.verify,
        "drafter's weights read once": [drafter], "drafter's step": times.draft,
    }  # fmt: skip
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


def _plain(engine: NativeEngine, case: Case) -> None:
    _start(engine, case.context, case.tokens)
    token = 5
    for _ in range(case.tokens):
        token = int(engine.forward([Chunk(_NAME, [token], 1)]).argmax())
    engine.release(_NAME)


def _speculative(bench: Bench, case: Case) -> None:
    """Draft, verify, keep a part, and roll both back. The tokens have no meaning, but the work is real."""
    context, tokens, gamma = case.context, case.tokens, case.gamma
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
    """Return the number of drafts that a round keeps.

    For rounds 1, 2, …, multiples of the golden ratio are spread evenly.
    """
    place = number * (math.sqrt(5) - 1) / 2 % 1
    return min(gamma, int(math.log(1 - place) / math.log(_ACCEPTANCE)))


def _draft(engine: NativeEngine, gamma: int) -> list[int]:
    drafts, token = list[int](), 5
    for _ in range(gamma):
        token = int(engine.forward([Chunk(_NAME, [token], 1)]).argmax())
        drafts.append(token)
    return drafts


def _draft_step(bench: Bench, case: Case) -> float:
    """Return the seconds of a drafter's step, the median of several drafts."""
    times = list[float]()
    _start(bench.drafter, case.context, case.gamma)
    for _ in range(10):
        times.append(bench.seconds(lambda: _draft(bench.drafter, case.gamma)) / case.gamma)
        bench.drafter.truncate(_NAME, case.context)
    bench.drafter.release(_NAME)
    return spread(times[2:]).value


def _hugging_face(bench: Bench, case: Case) -> None:
    prompt = torch.full((1, case.context), 5, device=bench.device)
    with torch.inference_mode():
        bench.model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=case.tokens, do_sample=False, pad_token_id=0
        )


def _pass(bench: Bench, context: int, count: int) -> float:
    """Return the seconds of one pass over `count` tokens, the median of several."""
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
    """Return the likeliest token after each token of a chunk, on the host."""
    best: list[int] = engine.forward([chunk]).argmax(-1).tolist()
    return best


def _bandwidth(bench: Bench) -> float:
    """Return the bytes a second of a large copy, counting reads and writes."""
    size = 2**32 if bench.device.type == "cuda" else 2**26
    source = torch.empty(size, dtype=torch.uint8, device=bench.device)
    sink = torch.empty_like(source)
    return 2 * size / min(bench.seconds(lambda: sink.copy_(source)) for _ in range(8))
