"""Capture passes once and replay them: one graph for each bucket of sizes, all of which read one static row.

A pass is padded to the size of its bucket, so that a replay is one call and Python and PyTorch launch nothing. The cost
is a capture at the first use of a bucket, and padding of at most about the size of the pass. Padding hardly slows a
pass that is bound by reading the weights. Within one bucket the same kernels run on the same shapes, so the result of a
row does not depend on the other rows. Between buckets the last bits may differ. One bucket for all passes would avoid
that, but every pass would cost as much as the largest.
"""

import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specdec.engine.cuda.inputs import PassInputs, PassShape, room, views

TOKENS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128)
QUERIES = (1, 2, 4, 8, 16, 32, 64, 128)
"""Sizes that passes are padded to; a larger pass is not captured."""
TABLE = 1 << 20
"""Largest number of pages of all sequences of a pass that fit in the static row."""
COMMON = (
    *(PassShape(size, 1, size) for size in QUERIES),
    *(PassShape(size, size, 1) for size in (2, 4, 8)),
    *(PassShape(8 * size, size, 8) for size in (2, 4, 8)),
)
"""Buckets of a few sessions that decode or verify short drafts, captured before the first session is admitted."""

_log = logging.getLogger(__name__)

Replay = Callable[[], Tensor]
"""Repeats the captured work on the current contents of the tensors it reads; always returns the same tensor."""
Capture = Callable[[Callable[[], Tensor]], Replay]
"""Captures work on a device; the work must read and write tensors whose addresses do not change."""


class CaptureSwitch:
    """Whether graphs are captured, shared by all models of a backend; turned off when a capture fails."""

    def __init__(self) -> None:
        self.on = True


class Graphs:
    """The captured graphs of one model with one memory."""

    def __init__(
        self,
        work: Callable[[PassInputs[Tensor], PassShape], Tensor],
        capture: Capture,
        switch: CaptureSwitch,
        device: torch.device,
    ) -> None:
        """`work` runs a pass and returns the logits of all its tokens."""
        self._work = work
        self._capture = capture
        self._switch = switch
        self._row = torch.zeros(
            room(PassShape(TOKENS[-1], SEQUENCES[-1], QUERIES[-1]), TABLE), dtype=torch.long, device=device
        )
        self._logits: Tensor | None = None
        """Logits of the last replayed graph; shared by all graphs to save memory."""
        self._captured: dict[PassShape, tuple[Replay, PassInputs[Tensor]]] = {}

    def offers(self, shape: PassShape) -> bool:
        """Whether a pass of that shape is captured, or can still be."""
        return shape in self._captured or self._switch.on

    def run(self, shape: PassShape, flat: Tensor) -> tuple[Tensor, PassInputs[Tensor]] | None:
        """Run the pass that a flat row describes.

        Returns:
            The logits of all tokens of the bucket, valid until the next run, and the views of the row on the device;
            None when the pass is too large or cannot be captured.
        """
        if flat.numel() > self._row.numel() or not self.offers(shape):
            return None
        self._row[: flat.numel()].copy_(flat, non_blocking=True)
        found = self._captured.get(shape) or self._capture_pass(shape)
        if found is None:
            return None
        replay, inputs = found
        return replay(), inputs

    def _capture_pass(self, shape: PassShape) -> tuple[Replay, PassInputs[Tensor]] | None:
        inputs = views(self._row, shape)
        try:
            self._captured[shape] = self._capture(lambda: self._put(self._work(inputs, shape))), inputs
        except Exception as error:  # noqa: BLE001 - a model that cannot be captured can still be run
            self._switch.on = False
            _log.warning("the model cannot be captured, its passes run operation by operation: %s", error)
        return self._captured.get(shape)

    def _put(self, logits: Tensor) -> Tensor:
        """Copy the logits of a pass to the shared tensor."""
        if self._logits is None:
            self._logits = logits.new_empty(TOKENS[-1], *logits.shape[1:])
        return self._logits[: len(logits)].copy_(logits)


def bucket(counts: Sequence[int]) -> PassShape | None:
    """The smallest bucket for sequences with these numbers of new tokens; None if there are too many."""
    sizes = ((TOKENS, sum(counts)), (SEQUENCES, len(counts)), (QUERIES, max(counts)))
    if any(needed > offered[-1] for offered, needed in sizes):
        return None
    return PassShape(*(offered[bisect_left(offered, needed)] for offered, needed in sizes))


def cuda_capture(device: torch.device) -> Capture:
    """A `Capture` of CUDA graphs whose intermediate results share one memory pool."""
    pool = torch.cuda.graph_pool_handle()

    def capture(work: Callable[[], Tensor]) -> Replay:
        with torch.cuda.device(device):
            work()  # compiles kernels and allocates workspaces, which must not happen during a capture
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                out = work()

        def replay() -> Tensor:
            graph.replay()
            return out

        return replay

    return capture
