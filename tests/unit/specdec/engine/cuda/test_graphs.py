"""Passes use the smallest bucket with room for them, are captured once, and run uncaptured if capture fails."""

import logging
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specdec.engine.cuda.graphs import COMMON, QUERIES, SEQUENCES, TOKENS, CaptureSwitch, Graphs, Replay, bucket
from specdec.engine.cuda.inputs import PassInputs, PassShape, room
from tests.support.devices import NO_CUDA
from tests.support.kv_backends import CallingCapture

ONE, TWO = PassShape(1, 1, 1), PassShape(2, 2, 1)


def doubled(inputs: PassInputs[Tensor], shape: PassShape) -> Tensor:
    """Return twice the ids as logits."""
    assert inputs.ids.shape == (shape.tokens,)
    return 2.0 * inputs.ids


def flat(shape: PassShape, ids: int, pages: int = 0) -> Tensor:
    """Return a row of numbers that all equal `ids`."""
    return torch.full((room(shape, pages),), ids)


class Refusing:
    """A capture that fails every call once `broken` is set."""

    def __init__(self) -> None:
        self.broken = False
        self.asked = 0

    def __call__(self, work: Callable[[], Tensor]) -> Replay:
        self.asked += 1
        if self.broken:
            raise RuntimeError("operation not permitted when stream is capturing")
        return work


def make(capture: CallingCapture | Refusing, switch: CaptureSwitch | None = None) -> Graphs:
    return Graphs(doubled, capture, switch or CaptureSwitch(), torch.device("cpu"))


@given(st.lists(st.integers(1, QUERIES[-1]), min_size=1, max_size=SEQUENCES[-1]))
def test_a_bucket_has_room_and_not_much_more(counts: list[int]) -> None:
    shape = bucket(counts)
    if sum(counts) > TOKENS[-1]:
        assert shape is None
        return
    assert shape is not None
    for size, needed in ((shape.tokens, sum(counts)), (shape.sequences, len(counts)), (shape.queries, max(counts))):
        assert needed <= size < 2 * needed


@pytest.mark.parametrize("counts", [[129], [1] * 129, [16] * 33, [1, 1, 200]])
def test_what_is_out_of_range_has_no_bucket(counts: list[int]) -> None:
    assert bucket(counts) is None


def test_common_buckets_are_buckets() -> None:
    assert len(set(COMMON)) == len(COMMON)
    for shape in COMMON:
        counts = [shape.tokens // shape.sequences] * shape.sequences
        assert bucket(counts) == shape


def test_a_bucket_is_captured_once_and_replayed_with_new_contents() -> None:
    capture = CallingCapture()
    graphs = make(capture)
    for ids, shape in ((3, ONE), (4, TWO), (5, ONE), (6, TWO)):
        run = graphs.run(shape, flat(shape, ids, pages=2))
        assert run is not None
        logits, inputs = run
        assert logits.tolist() == [2.0 * ids] * shape.tokens
        assert inputs.pages[:2].tolist() == [ids, ids]
    assert (capture.captured, capture.replayed) == (2, 4)


def test_what_cannot_be_captured_is_said_once_and_run_otherwise(caplog: pytest.LogCaptureFixture) -> None:
    capture, switch = Refusing(), CaptureSwitch()
    graphs = make(capture, switch)
    assert graphs.run(ONE, flat(ONE, 3)) is not None
    capture.broken = True
    with caplog.at_level(logging.WARNING):
        assert graphs.run(TWO, flat(TWO, 3)) is None
        assert graphs.run(TWO, flat(TWO, 3)) is None
        assert make(capture, switch).run(ONE, flat(ONE, 3)) is None
    assert capture.asked == 2
    assert [record.message.partition(",")[0] for record in caplog.records] == ["the model cannot be captured"]
    run = graphs.run(ONE, flat(ONE, 4))
    assert run is not None
    assert run[0].tolist() == [8.0]


def test_more_pages_than_the_row_has_room_for_run_otherwise() -> None:
    graphs = make(CallingCapture())
    assert graphs.run(ONE, torch.zeros(1, dtype=torch.long).expand(room(ONE, 1 << 21))) is None


@NO_CUDA
def test_cuda_replays_what_it_captured_with_what_the_row_holds_then() -> None:
    from specdec.engine.cuda.graphs import cuda_capture

    device = torch.device("cuda")
    graphs = Graphs(doubled, cuda_capture(device), CaptureSwitch(), device)
    seen = []
    for ids, shape in ((3, ONE), (4, TWO), (5, ONE)):
        run = graphs.run(shape, flat(shape, ids).pin_memory())
        assert run is not None
        seen.append(run[0].tolist())
    assert seen == [[6.0], [8.0, 8.0], [10.0]]


@NO_CUDA
def test_cuda_goes_on_after_a_capture_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    from specdec.engine.cuda.graphs import cuda_capture

    device = torch.device("cuda")
    graphs = Graphs(lambda inputs, _: inputs.ids * int(inputs.ids[0]), cuda_capture(device), CaptureSwitch(), device)
    assert graphs.run(ONE, flat(ONE, 3)) is None
    assert len(caplog.records) == 1
    assert (torch.ones(3, device=device) * 2).tolist() == [2.0, 2.0, 2.0]
