"""Slabs, and passes that attend to one session and layer after the other, which is the fastest way on a CPU."""

from collections.abc import Sequence

import torch
from torch import Tensor

from specdec.engine.attention import AttentionRule, attending
from specdec.engine.batch import PackedBatch
from specdec.engine.decoder import Decoder
from specdec.engine.host.slabs import Slab, SlabStore
from specdec.engine.kv_backend import KvBackend
from specdec.engine.kv_layout import KvLayout
from specdec.engine.span import AttentionSpan
from specdec.rules.tree import Tree


def open_host_backend(decoder: Decoder, layout: KvLayout, budget: int) -> KvBackend[Slab]:
    """Open slabs within a budget in bytes; the memory is taken as it is written."""

    def run(slabs: Sequence[Slab], batch: PackedBatch) -> Tensor:
        spans = [SlabSpan(*share) for share in zip(slabs, batch.counts, batch.trees, strict=True)]
        with attending(HostStep(spans)):
            return decoder.logits(batch.tokens, batch.positions, batch.keep)

    return KvBackend(SlabStore(layout, budget), run, warm=lambda: None)


class SlabSpan(AttentionSpan):
    """The new tokens of a session whose keys and values lie in a slab, the new ones behind its length."""

    def __init__(self, slab: Slab, count: int, tree: Tree | None = None) -> None:
        super().__init__(slab.length, count, tree)
        end = self.start + count
        keys, values = slab.keys[..., :end, :], slab.values[..., :end, :]
        self._keys, self._values = keys.unbind(), values.unbind()
        self._new_keys = keys[..., self.start :, :].unbind()
        self._new_values = values[..., self.start :, :].unbind()

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: AttentionRule) -> Tensor:
        """Write the new keys and values of a layer, then attend; shapes as in `AttentionStep.attend` with T = count."""
        self._new_keys[layer].copy_(key)
        self._new_values[layer].copy_(value)
        keys, values = self._keys[layer], self._values[layer]
        if first := self.first_seen(rule.window):
            keys, values = keys[:, :, first:], values[:, :, first:]
        return self.over(query, keys, values, rule)


class HostStep:
    """The attention step of a pass over several sessions in slabs."""

    def __init__(self, spans: Sequence[SlabSpan]) -> None:
        self._spans = spans
        self._counts = [span.count for span in spans]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: AttentionRule) -> Tensor:
        """Attend with each session's queries to its own keys; shapes as in `AttentionStep.attend`."""
        if len(self._spans) == 1:
            return self._spans[0].attend(layer, query, key, value, rule)
        queries, keys, values = (tensor.split_with_sizes(self._counts, 2) for tensor in (query, key, value))
        shares = zip(self._spans, queries, keys, values, strict=True)
        return torch.cat([span.attend(layer, q, k, v, rule) for span, q, k, v in shares], dim=1)
