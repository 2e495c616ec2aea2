"""Packed passes over pages: replayed from a captured graph if one fits, else run eagerly."""

from collections.abc import Sequence

import torch
from torch import Tensor

from specdec.engine.attention import attending
from specdec.engine.batch import PackedBatch, StateRows
from specdec.engine.cuda.graphs import TOKENS, Capture, CaptureSwitch, Graphs, bucket
from specdec.engine.cuda.inputs import (
    MOST_NODES,
    PassInputs,
    PassShape,
    SequenceShare,
    flatten,
    sequence_shares,
    views,
)
from specdec.engine.cuda.paged_step import Kernels, PagedSpan, PagedStep
from specdec.engine.cuda.pages import PageList, Pages
from specdec.engine.decoder import Decoder

_PADDING = PackedBatch([], [], [], [], [])


class Runner:
    """Runs the passes of one model with one memory."""

    def __init__(self, decoder: Decoder, memory: Pages, kernels: Kernels | None) -> None:
        """Without `kernels` every chunk is gathered."""
        self._decoder = decoder
        self._memory = memory
        self._kernels = kernels
        self._graphs: Graphs | None = None
        self._states: tuple[Tensor, ...] = ()
        """States of the last captured pass that enter each tapped layer; shared by all graphs."""
        self._pin = memory.device.type == "cuda"

    def capture_with(self, capture: Capture, switch: CaptureSwitch) -> None:
        """Capture passes from now on; requires kernels."""
        self._graphs = Graphs(self._all_logits, capture, switch, self._memory.device)

    def warm(self, shapes: Sequence[PassShape]) -> None:
        """Capture these buckets now, by passes of padding only."""
        for shape in shapes:
            if self._graphs is not None:
                self._graphs.run(shape, flatten(shape, (), _PADDING, (), self._pin))

    def __call__(self, sequences: Sequence[PageList], batch: PackedBatch) -> Tensor:
        """Run a packed pass, as in `RunPass`."""
        shares = list(sequence_shares(sequences, batch))
        logits = self._replayed(sequences, batch, shares)
        return self._eager(sequences, batch, shares) if logits is None else logits

    def _replayed(
        self, sequences: Sequence[PageList], batch: PackedBatch, shares: Sequence[SequenceShare]
    ) -> Tensor | None:
        """The logits of a captured pass; None when no graph fits."""
        shape = bucket(batch.counts)
        if self._graphs is None or shape is None or not self._graphs.offers(shape):
            return None
        if any(share.tree is not None and share.count > MOST_NODES for share in shares):
            return None
        run = self._graphs.run(shape, flatten(shape, sequences, batch, shares, self._pin))
        if run is None:
            return None
        logits, inputs = run
        if batch.states is not None:
            batch.states.put([each[: len(batch.tokens)].clone() for each in self._states])
        return logits.index_select(0, inputs.keep[: len(batch.keep)]).to(torch.float32)

    def _eager(self, sequences: Sequence[PageList], batch: PackedBatch, shares: Sequence[SequenceShare]) -> Tensor:
        most = 0 if self._kernels is None else MOST_NODES
        queries = max((share.count for share in shares if share.count <= most), default=0)
        shape = PassShape(len(batch.tokens), len(shares), queries)
        flat = flatten(shape, sequences, batch, shares, self._pin)
        inputs = views(flat.to(self._memory.device, non_blocking=True), shape)
        gathered = [PagedSpan(self._memory, inputs.pages, share) for share in shares if share.count > queries]
        count, total = len(batch.keep), len(batch.tokens)
        last = count > 0 and batch.keep[0] == total - count
        with attending(PagedStep(self._memory, inputs, shape, self._kernels, gathered)):
            keep = count if last else inputs.keep[:count]
            rows = self._decoder.run(inputs.ids[None], inputs.positions[None], keep, batch.states)
        return rows.to(torch.float32, copy=True)

    def _all_logits(self, inputs: PassInputs[Tensor], shape: PassShape) -> Tensor:
        """The captured work: one pass that returns the logits of all tokens of a bucket."""
        states = StateRows(shape.tokens) if self._decoder.taps else None
        with attending(PagedStep(self._memory, inputs, shape, self._kernels)):
            logits = self._decoder.run(inputs.ids[None], inputs.positions[None], 0, states)
        if states is not None:
            self._keep(states.layers)
        return logits

    def _keep(self, layers: Sequence[Tensor]) -> None:
        """Copy the states of a captured pass to the shared tensors."""
        if not self._states:
            self._states = tuple(each.new_empty(TOKENS[-1], *each.shape[1:]) for each in layers)
        for kept, own in zip(self._states, layers, strict=True):
            kept[: len(own)].copy_(own)
