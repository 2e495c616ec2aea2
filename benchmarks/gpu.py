"""`python -m benchmarks.gpu`: the engine at the size of real models, on random weights, with forced acceptance.

Nothing is downloaded: both models are built from their shapes. Random models agree on nothing, so how many drafts a
round keeps is drawn (0.8 for each) and not judged; every pass, draft step and rollback is done as it would be.
"""

import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
import typer
from rich.console import Console
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks import machine
from benchmarks.pages import publish
from benchmarks.results import Goal, Report, figure, show
from benchmarks.statistics import paired, spread
from specdec.engine import Chunk, Engine
from specdec.engine.decoder import Decoder
from specdec.engine.facts import Facts
from specdec.engine.probe import probe

_ACCEPTANCE = 0.8
_TEXT = """\
An 8B-shaped target and a 1B-shaped drafter with random weights in bfloat16 on one GPU, batch 1, in process. Random
models agree on nothing, so how many drafts a round keeps is drawn, 0.8 for each, and not judged; every pass, draft
step and rollback is done as it would be. HF is `generate()` on the same model with the attention it would choose."""
_NAME = "bench"
_SHAPES: dict[str, dict[str, dict[str, Any]]] = {
    "8b": {
        "target": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32},
        "drafter": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32},
        "both": {"num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192},
    },
    "tiny": {
        "target": {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4},
        "drafter": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4},
        "both": {"num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 512},
    },
}


@dataclass(frozen=True, slots=True)
class Bench:
    """Both engines, the target as transformers has it, and how to wait for the device."""

    model: Any
    target: Engine
    drafter: Engine
    device: torch.device

    def seconds(self, work: Callable[[], object]) -> float:
        """Of `work`, its kernels included."""
        self._wait()
        started = time.perf_counter()
        work()
        self._wait()
        return time.perf_counter() - started

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def build(shape: str, device: torch.device) -> Bench:
    """Both models with random bfloat16 weights on the device."""
    sizes = _SHAPES[shape]
    model = _model({**sizes["both"], **sizes["target"]}, device)
    served, small = (_engine(each) for each in (model, _model({**sizes["both"], **sizes["drafter"]}, device)))
    return Bench(model, served, small, device)


def measure(bench: Bench, context: int, tokens: int, gamma: int, repeats: int) -> Report:
    """The four figures, each from runs in turn."""
    ours, theirs, fast, steps, checks = (list[float]() for _ in range(5))
    for turn in range(repeats + 1):
        plain = bench.seconds(lambda: _plain(bench.target, context, tokens))
        speculative = bench.seconds(lambda: _speculative(bench, context, tokens, gamma))
        peer = bench.seconds(lambda: _hugging_face(bench, context, tokens))
        step, check = _pass(bench, context, 1), _pass(bench, context, gamma + 1)
        if turn:
            for kept, value in zip(
                (ours, fast, theirs, steps, checks), (plain, speculative, peer, step, check), strict=True
            ):
                kept.append(value)
    limit = _bytes(bench.model) / _bandwidth(bench)
    share = spread([100.0 * limit / step for step in steps])
    forced = f"acceptance forced to {_ACCEPTANCE}"
    return Report(
        "gpu",
        f"{_TEXT}\n\n{tokens} tokens behind a prompt of {context}, drafts of {gamma}.",
        [
            figure("plain step, % of the weight-bandwidth limit (measured by copying)", share, Goal(70.0)),
            figure(f"verify {gamma + 1} tokens / 1", paired(checks, steps), Goal(1.15, at_most=True)),
            figure(f"speculation / plain, {forced}", paired(ours, fast), Goal(2.5)),
            figure(f"speculation / HF, {forced}", paired(theirs, fast), Goal(6.0)),
            figure("plain / HF", paired(theirs, ours)),
        ],
    )


def _model(settings: dict[str, Any], device: torch.device) -> Any:
    with torch.device(device):
        model = LlamaForCausalLM._from_config(LlamaConfig(**settings), dtype=torch.bfloat16).eval()
    model.generation_config.eos_token_id = None
    return model


def _engine(model: Any) -> Engine:
    config = model.config
    decoder = Decoder(model, config.vocab_size, model.device)
    facts = Facts("random", config.vocab_size, config.max_position_embeddings, frozenset(), "", "")
    layout = probe(decoder)
    return Engine(decoder, facts, layout, layout.token_bytes * config.max_position_embeddings)


def _start(engine: Engine, context: int, room: int) -> None:
    engine.admit(_NAME, context + room)
    engine.reserve(_NAME, context + room)
    engine.forward([Chunk(_NAME, [5] * context, 0)])


def _plain(engine: Engine, context: int, tokens: int) -> None:
    _start(engine, context, tokens)
    token = 5
    for _ in range(tokens):
        token = int(engine.forward([Chunk(_NAME, [token], 1)]).argmax())
    engine.release(_NAME)


def _speculative(bench: Bench, context: int, tokens: int, gamma: int) -> None:
    """Draft, verify, keep as many as the die says, roll both back; the tokens mean nothing, the work is real."""
    die = random.Random(0)
    for engine in (bench.target, bench.drafter):
        _start(engine, context, tokens + 2 * gamma + 2)
    done = 0
    while done < tokens:
        drafts = _draft(bench.drafter, gamma)
        _verify(bench.target, Chunk(_NAME, [5, *drafts], gamma + 1))
        accepted = next((kept for kept in range(gamma) if die.random() >= _ACCEPTANCE), gamma)
        done += accepted + 1
        for engine in (bench.target, bench.drafter):
            engine.truncate(_NAME, min(engine.length(_NAME), context + done))
    for engine in (bench.target, bench.drafter):
        engine.release(_NAME)


def _draft(engine: Engine, gamma: int) -> list[int]:
    drafts, token = list[int](), 5
    for _ in range(gamma):
        token = int(engine.forward([Chunk(_NAME, [token], 1)]).argmax())
        drafts.append(token)
    return drafts


def _hugging_face(bench: Bench, context: int, tokens: int) -> None:
    """The same model object, with the attention transformers would choose."""
    bench.model.set_attn_implementation("sdpa")
    prompt = torch.full((1, context), 5, device=bench.device)
    with torch.inference_mode():
        bench.model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=tokens, do_sample=False, pad_token_id=0
        )
    bench.model.set_attn_implementation("specdec")


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


def _verify(engine: Engine, chunk: Chunk) -> list[int]:
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


def main(
    shape: Annotated[Literal["8b", "tiny"], typer.Option(help="Of the models.")] = "8b",
    device: Annotated[Literal["cuda", "cpu"], typer.Option(help="Where to run.")] = "cuda",
    tokens: Annotated[int, typer.Option(help="Of an output.")] = 128,
    context: Annotated[int, typer.Option(help="Tokens before it.")] = 256,
    gamma: Annotated[int, typer.Option(help="Draft length.")] = 5,
    repeats: Annotated[int, typer.Option(help="Of every run.")] = 3,
) -> None:
    """Measure, show and keep the figures."""
    if device == "cuda" and not torch.cuda.is_available():
        sys.stderr.write("error: no GPU here: run it on a machine that has one, or try --device cpu --shape tiny\n")
        raise typer.Exit(1)
    load = machine.load()
    report = measure(build(shape, torch.device(device)), context, tokens, gamma, repeats)
    if shape == "8b" and device == "cuda":
        publish(report, "python -m benchmarks.gpu", load=load)
    else:
        show(Console(width=100), report)


if __name__ == "__main__":
    typer.run(main)
