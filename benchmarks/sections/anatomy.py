"""The parts of a pass, and the throughput that passes alone would allow."""

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from benchmarks.reports.results import Figure, Table, figure
from benchmarks.reports.statistics import paired, spread
from benchmarks.sections.lab import HF_DEFAULT, Lab
from specdec.engine import Chunk, NativeEngine
from specdec.engine.cpu.cpp_library import HostCode
from specdec.engine.cpu.product import PackedLinear, pack_products

_CONTEXT = 150
"""Context of each session in tokens, about the middle of a generation of the concurrency section."""
_SESSIONS, _DRAFTS = 16, 4
_CASES = ((1, 1), (1, 5), (4, 5), (16, 1), (_SESSIONS, _DRAFTS + 1))
_TURNS = 15


def measure(lab: Lab, engine: NativeEngine) -> tuple[Figure, Table]:
    """Compare the ceiling of many concurrent sessions with sequential `generate()`, and split up the time of a pass."""
    packed, plain, rows = _products(lab, "auto"), _products(lab, "torch"), list[list[str]]()
    for sessions, tokens in _CASES:
        whole = _pass(engine, sessions, tokens)
        turns = [[_multiplied(each, sessions * tokens) for each in (packed, plain)] for _ in range(_TURNS)]
        product, ratio = spread([mine for mine, _ in turns]).value, paired(*zip(*turns, strict=True))
        times = (whole, product, whole - product)
        figures = (*(f"{1000 * each:.2f}" for each in times), f"{product / whole:.2f}", str(ratio))
        rows.append([str(sessions), str(tokens), *figures])
    head = (
        "sessions", "tokens of each", "pass, ms", "products with weights alone", "the rest", "share of products",
        "products / those of PyTorch",
    )  # fmt: skip
    return _ceiling(lab, engine), Table(head, rows)


def _ceiling(lab: Lab, engine: NativeEngine) -> Figure:
    peer, tokens = lab.hugging_face()[HF_DEFAULT], _DRAFTS + 1
    serial, most = list[float](), list[float]()
    for ask in lab.asks():
        serial.append(peer.generate(ask).speed)
        most.append(_SESSIONS * tokens / _pass(engine, _SESSIONS, tokens))
    name = f"{_SESSIONS} sessions, {_DRAFTS} of {_DRAFTS} drafts kept, nothing but passes / HF assisted"
    return figure(name, paired(most, serial))


def _pass(engine: NativeEngine, sessions: int, tokens: int) -> float:
    """Return the median seconds of a pass."""
    names = [f"anatomy/{number}" for number in range(sessions)]
    for name in names:
        engine.admit(name, _CONTEXT + tokens)
        engine.reserve(name, _CONTEXT + tokens)
        engine.forward([Chunk(name, [5] * _CONTEXT, 0)])
    times = list[float]()
    for _ in range(_TURNS):
        times.append(_timed(lambda: engine.forward([Chunk(name, [7] * tokens, tokens) for name in names])))
        for name in names:
            engine.truncate(name, _CONTEXT)
    for name in names:
        engine.release(name)
    return spread(times).value


def _products(lab: Lab, products: HostCode) -> Sequence[nn.Linear | PackedLinear]:
    """Return the target's matrices, in the order in which a pass uses them."""
    model = AutoModelForCausalLM.from_pretrained(lab.scale.pair.target, dtype=torch.float32, local_files_only=True)
    pack_products(model, products)
    return [module for module in model.modules() if isinstance(module, nn.Linear | PackedLinear)]


@torch.inference_mode()
def _multiplied(weights: Sequence[nn.Linear | PackedLinear], rows: int) -> float:
    """Return the seconds of all matrix products with `rows` tokens."""
    inputs: dict[int, Tensor] = {each.in_features: torch.ones(1, rows, each.in_features) for each in weights}
    return _timed(lambda: [each(inputs[each.in_features]) for each in weights])


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
