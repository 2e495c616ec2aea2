"""Captured and replayed passes over a real, tiny model: when passes are captured, and that padding has no effect."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specdec.engine import Chunk, NativeEngine
from specdec.engine.cuda.backend import PagedBackend
from specdec.engine.cuda.graphs import COMMON, Replay
from tests.support.kv_backends import CallingCapture, PlainKernels, graphs, session_kv

pytestmark = pytest.mark.integration

TEXT = [(7 + 31 * i * i) % 320 for i in range(140)]
LONG = 130
"""Length of a prompt that is not captured, in tokens."""
Tiny = Callable[[str], Path]


def load(folder: Path, kv_backend: PagedBackend, **settings: Any) -> NativeEngine:
    defaults: dict[str, Any] = {"dtype": "float32", "device": "cpu", "kv_bytes": 1 << 22, "threads": 1}
    return NativeEngine.load(folder, **(defaults | settings), kv_backend=kv_backend)


@pytest.fixture
def capture() -> CallingCapture:
    return CallingCapture()


@pytest.fixture
def engine(tiny: Tiny, capture: CallingCapture) -> NativeEngine:
    """Return an engine that counts its captures after the load."""
    engine = load(tiny("llama"), graphs(capture))
    capture.captured = capture.replayed = 0
    return engine


def start(engine: NativeEngine, names: str) -> None:
    """Start sessions with a prompt that is too long to be captured."""
    for name in names:
        engine.admit(name, 200)
        engine.forward([Chunk(name, TEXT[:LONG], 0)])


def test_short_passes_are_replayed_and_long_ones_are_not(engine: NativeEngine, capture: CallingCapture) -> None:
    start(engine, "ab")
    assert capture.captured == 0
    for token in range(5):
        engine.forward([Chunk("a", [token], 1), Chunk("b", [token], 1)])
    for count in (5, 6, 8):
        engine.forward([Chunk("a", TEXT[:count], 1)])
    assert (capture.captured, capture.replayed) == (2, 8)
    engine.admit("c", 200)
    engine.forward([Chunk("c", TEXT[:100], 1), Chunk("a", [5], 1)])  # a prompt beside a decoding session
    assert (capture.captured, capture.replayed) == (3, 9)


def test_padding_writes_to_nobodys_pages(engine: NativeEngine, tiny: Tiny) -> None:
    small = load(tiny("llama"), graphs(), kv_bytes=4 * 16 * engine.kv_layout.token_bytes)
    for name in "abc":
        small.admit(name, 64)
        small.forward([Chunk(name, TEXT[:15], 0)])
    assert small.reserve("c", 32)
    before = {name: session_kv(small, name, 0, 15) for name in "abc"}
    for count in (3, 5, 9):
        small.forward([Chunk("c", TEXT[:count], count)])
        small.truncate("c", 15)
    small.forward([Chunk(name, [1], 1) for name in "abc"])
    assert all(torch.equal(before[name], session_kv(small, name, 0, 15)) for name in "abc")


def test_logits_of_a_replay_outlive_the_next_one(engine: NativeEngine) -> None:
    start(engine, "a")
    first = engine.forward([Chunk("a", [5], 1)])
    kept = first.clone()
    engine.forward([Chunk("a", [6], 1)])
    assert torch.equal(first, kept)
    assert not first.is_inference()


def test_within_a_bucket_a_row_does_not_depend_on_its_batch_mates(engine: NativeEngine) -> None:
    start(engine, "abc")
    rows: list[Tensor] = []
    for mate, tokens in (("b", [1, 2, 3]), ("c", [300]), ("b", [4, 5])):
        rows.append(engine.forward([Chunk("a", TEXT[:4], 4), Chunk(mate, tokens, 0)]))
        engine.truncate("a", LONG)
        engine.truncate(mate, LONG)
    assert torch.equal(rows[0], rows[1])
    assert torch.equal(rows[0], rows[2])


def test_common_buckets_are_captured_before_the_first_session_comes(tiny: Tiny) -> None:
    capture = CallingCapture()
    engine = load(tiny("llama"), PagedBackend(PlainKernels(), lambda: capture, COMMON))
    captured = capture.captured
    assert captured >= len(COMMON)
    start(engine, "a")
    engine.forward([Chunk("a", [5], 1)])
    engine.forward([Chunk("a", TEXT[:6], 6)])
    assert capture.captured == captured


def test_a_model_that_cannot_be_captured_is_served_and_that_is_said_once(
    tiny: Tiny, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(work: Callable[[], Tensor]) -> Replay:
        raise RuntimeError("operation not permitted when stream is capturing")

    with caplog.at_level(logging.WARNING):
        engine = load(tiny("llama"), PagedBackend(PlainKernels(), lambda: refuse))
        plain = load(tiny("llama"), PagedBackend())
        logits = []
        for each in (engine, plain):
            start(each, "a")
            logits.append(each.forward([Chunk("a", TEXT[:5], 5)]))
    torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-4)
    assert [record.name for record in caplog.records] == ["specdec.engine.cuda.graphs"]
