"""Attention of one packed pass on the host: each session's queries against its own keys, read as views."""

from collections.abc import Sequence

import torch
from torch import Tensor

from specdec.engine.attention import Rule
from specdec.engine.host.slab import Slab
from specdec.engine.span import Span
from specdec.rules.tree import Tree


class SlabSpan(Span):
    """A share of a pass whose keys and values lie in a slab, the new ones behind its length."""

    def __init__(self, slab: Slab, count: int, tree: Tree | None = None) -> None:
        super().__init__(slab.length, count, tree)
        end = self.start + count
        keys, values = slab.keys[..., :end, :], slab.values[..., :end, :]
        self._keys, self._values = keys.unbind(), values.unbind()
        self._new_keys = keys[..., self.start :, :].unbind()
        self._new_values = values[..., self.start :, :].unbind()

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: Rule) -> Tensor:
        """Write the new keys and values of a layer, then attend; shapes as in `attention.Step`, T = count."""
        self._new_keys[layer].copy_(key)
        self._new_values[layer].copy_(value)
        keys, values = self._keys[layer], self._values[layer]
        if first := self.first_seen(rule.window):
            keys, values = keys[:, :, first:], values[:, :, first:]
        return self.over(query, keys, values, rule)


class PackedStep:
    """The attention step of a pass over several sessions."""

    def __init__(self, spans: Sequence[SlabSpan]) -> None:
        self._spans = spans
        self._counts = [span.count for span in spans]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: Rule) -> Tensor:
        """See `attention.Step`."""
        if len(self._spans) == 1:
            return self._spans[0].attend(layer, query, key, value, rule)
        queries, keys, values = (tensor.split_with_sizes(self._counts, 2) for tensor in (query, key, value))
        shares = zip(self._spans, queries, keys, values, strict=True)
        return torch.cat([span.attend(layer, q, k, v, rule) for span, q, k, v in shares], dim=1)
