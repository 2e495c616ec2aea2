"""Passes that are captured once and replayed: one graph for each bucket of sizes, all reading one static row.

A pass is padded up to its bucket. Padding buys that Python and PyTorch issue nothing: a replay is one call. It costs
rows that are computed for nothing, at most about as many again, which a pass that is bound by reading the weights
hardly notices, and a capture the first time that a bucket is used. Within one bucket the same kernels run on the same
shapes, so what a row computes does not depend on its batch-mates; between buckets last bits may differ. One bucket for
all passes would remove that too, at the price of the largest pass for every token.
"""

import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from specdec.engine.paged.inputs import Inputs, Shape, room, views

TOKENS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128)
QUERIES = (1, 2, 4, 8, 16)
"""Sizes that passes are padded to; a pass that needs more runs operation by operation."""
TABLE = 1 << 20
"""Pages of all sequences of a pass, for which the static row has room."""
COMMON = (
    *(Shape(size, 1, size) for size in QUERIES),
    *(Shape(size, size, 1) for size in (2, 4, 8)),
    *(Shape(8 * size, size, 8) for size in (2, 4, 8)),
)
"""Buckets of a few sessions that decode or verify short drafts; worth capturing before the first session comes."""

_log = logging.getLogger(__name__)

Replay = Callable[[], Tensor]
"""Do again what was captured, with what the tensors it reads hold now; the result is the same tensor every time."""


class Capture(Protocol):
    """How a device captures."""

    def __call__(self, work: Callable[[], Tensor]) -> Replay:
        """Run `work`, which reads and writes tensors that stay where they are, and remember what it did."""


class Switch:
    """Whether graphs are captured; once that has failed, no more."""

    def __init__(self) -> None:
        self.on = True


class Graphs:
    """The graphs of one model over one memory."""

    def __init__(
        self, work: Callable[[Inputs[Tensor], Shape], Tensor], capture: Capture, switch: Switch, device: torch.device
    ) -> None:
        """`work` runs a pass and gives the logits of all its tokens."""
        self._work = work
        self._capture = capture
        self._switch = switch
        self._row = torch.zeros(
            room(Shape(TOKENS[-1], SEQUENCES[-1], QUERIES[-1]), TABLE), dtype=torch.long, device=device
        )
        self._captured: dict[Shape, tuple[Replay, Inputs[Tensor]]] = {}

    def offers(self, shape: Shape) -> bool:
        """Whether a pass of that shape is captured, or may yet be."""
        return shape in self._captured or self._switch.on

    def run(self, shape: Shape, flat: Tensor) -> tuple[Tensor, Inputs[Tensor]] | None:
        """Run the pass that a flat row describes.

        Returns:
            The logits of all tokens of the bucket, valid until the next run, and the row's views on the device; None
            when the pass must be run otherwise.
        """
        if flat.numel() > self._row.numel() or not self.offers(shape):
            return None
        self._row[: flat.numel()].copy_(flat, non_blocking=True)
        found = self._captured.get(shape) or self._capture_pass(shape)
        if found is None:
            return None
        replay, inputs = found
        return replay(), inputs

    def _capture_pass(self, shape: Shape) -> tuple[Replay, Inputs[Tensor]] | None:
        inputs = views(self._row, shape)
        try:
            self._captured[shape] = self._capture(lambda: self._work(inputs, shape)), inputs
        except Exception as error:  # noqa: BLE001 - whatever a model does that cannot be captured, it can still be run
            self._switch.on = False
            _log.warning("the model cannot be captured, its passes run operation by operation: %s", error)
        return self._captured.get(shape)


def bucket(counts: Sequence[int]) -> Shape | None:
    """The smallest bucket for sequences of so many new tokens; None when there is none."""
    sizes = ((TOKENS, sum(counts)), (SEQUENCES, len(counts)), (QUERIES, max(counts)))
    if any(needed > offered[-1] for offered, needed in sizes):
        return None
    return Shape(*(offered[bisect_left(offered, needed)] for offered, needed in sizes))


class CudaCapture:
    """Captures with CUDA graphs, whose intermediate results share one pool of memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Callable[[], Tensor]) -> Replay:
        """See `Capture`."""
        with torch.cuda.device(self._device):
            work()  # compiles kernels and takes workspaces, which must not happen while work is only noted down
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                out = work()

        def replay() -> Tensor:
            graph.replay()
            return out

        return replay
