"""Packed passes over pages: replayed from a captured graph where one fits, else run operation by operation."""

from collections.abc import Sequence

import torch
from torch import Tensor

from specdec.engine.attention import attending
from specdec.engine.batch import Batch
from specdec.engine.decoder import Decoder
from specdec.engine.paged.graphs import Capture, Graphs, Switch, bucket
from specdec.engine.paged.inputs import MOST_NODES, Inputs, Reach, Shape, flatten, reaches, views
from specdec.engine.paged.kernels import Kernels
from specdec.engine.paged.page_list import PageList
from specdec.engine.paged.paged_span import PagedSpan
from specdec.engine.paged.paged_step import Gathered, PagedStep
from specdec.engine.paged.pages import Pages

_PADDING = Batch([], [], [], [], [])


class Runner:
    """Passes of one model over one memory."""

    def __init__(self, decoder: Decoder, memory: Pages, kernels: Kernels | None) -> None:
        """Without `kernels` every chunk is gathered."""
        self._decoder = decoder
        self._memory = memory
        self._kernels = kernels
        self._graphs: Graphs | None = None
        self._pin = memory.device.type == "cuda"

    def capture_with(self, capture: Capture, switch: Switch) -> None:
        """Capture passes from now on; needs kernels."""
        self._graphs = Graphs(self._all_logits, capture, switch, self._memory.device)

    def warm(self, shapes: Sequence[Shape]) -> None:
        """Capture these buckets now, by passes of padding alone."""
        for shape in shapes:
            if self._graphs is not None:
                self._graphs.run(shape, flatten(shape, (), _PADDING, (), self._pin))

    def __call__(self, holdings: Sequence[PageList], batch: Batch) -> Tensor:
        """See `place.Run`."""
        shares = list(reaches(holdings, batch))
        logits = self._replayed(holdings, batch, shares)
        return self._eager(holdings, batch, shares) if logits is None else logits

    def _replayed(self, holdings: Sequence[PageList], batch: Batch, shares: Sequence[Reach]) -> Tensor | None:
        """The logits, None when no graph fits."""
        shape = bucket(batch.counts)
        if self._graphs is None or shape is None or not self._graphs.offers(shape):
            return None
        run = self._graphs.run(shape, flatten(shape, holdings, batch, shares, self._pin))
        if run is None:
            return None
        logits, inputs = run
        return logits.index_select(0, inputs.keep[: len(batch.keep)]).to(torch.float32)

    def _eager(self, holdings: Sequence[PageList], batch: Batch, shares: Sequence[Reach]) -> Tensor:
        most = 0 if self._kernels is None else MOST_NODES
        queries = max((share.count for share in shares if share.count <= most), default=0)
        shape = Shape(len(batch.tokens), len(shares), queries)
        flat = flatten(shape, holdings, batch, shares, self._pin)
        inputs = views(flat.to(self._memory.device, non_blocking=True), shape)
        gathered = [self._gathered(share, inputs) for share in shares if share.count > queries]
        count, total = len(batch.keep), len(batch.tokens)
        last = count > 0 and batch.keep[0] == total - count
        with attending(PagedStep(self._memory, inputs, shape, self._kernels, gathered)):
            rows = self._decoder.run(inputs.ids[None], inputs.positions[None], count if last else inputs.keep[:count])
        return rows.to(torch.float32, copy=True)

    def _gathered(self, share: Reach, inputs: Inputs[Tensor]) -> Gathered:
        pages = inputs.pages[share.table : share.table + share.pages]
        return Gathered(share.first, PagedSpan(self._memory, pages, share.start, share.count, share.tree))

    def _all_logits(self, inputs: Inputs[Tensor], shape: Shape) -> Tensor:
        """What is captured: one pass over all tokens of a bucket."""
        with attending(PagedStep(self._memory, inputs, shape, self._kernels)):
            return self._decoder.run(inputs.ids[None], inputs.positions[None], 0)
