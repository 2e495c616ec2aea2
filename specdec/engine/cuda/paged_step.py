"""Attention of one pass over pages: kernels for short chunks; for long chunks each layer gathers the pages."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from specdec.engine.attention import AttentionRule
from specdec.engine.cpu.span import AttentionSpan
from specdec.engine.cuda.inputs import PassInputs, PassShape, SequenceShare
from specdec.engine.cuda.pages import PAGE_TOKENS, Pages


class Kernels(Protocol):
    """The two kernels. Everything that differs between passes is in tensors, so a call can be captured and replayed."""

    def store(self, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        """Write new keys and values to their slots.

        Args:
            key: [1, heads, T, key width].
            value: [1, heads, T, value width].
            keys: [pages, page tokens, heads, key width], of one layer.
            values: [pages, page tokens, heads, value width].
            slots: slot of each token [T]; a token with slot -1 is not stored.
        """

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, inputs: PassInputs[Tensor], rule: AttentionRule, queries: int
    ) -> Tensor:
        """Attend for the tokens that have an owner.

        Args:
            query: [1, query heads, T, key width].
            keys: [pages, page tokens, heads, key width], of one layer.
            values: [pages, page tokens, heads, value width].
            inputs: inputs of the pass; the keys and values of the new tokens must be stored.
            rule: attention parameters of the layer.
            queries: largest number of new tokens of a sequence; for a tree at most `inputs.MOST_NODES`.

        Returns:
            [1, T, query heads, value width]; zeros for tokens without an owner.
        """


class PagedSpan(AttentionSpan):
    """The new tokens of a session whose pages are gathered; only pages that its queries see are read."""

    def __init__(self, memory: Pages, pages: Tensor, share: SequenceShare) -> None:
        """`pages` holds the numbers of all pages of the pass, on the device."""
        super().__init__(share.start, share.count, share.tree)
        self.rows = slice(share.first, share.first + share.count)
        """Indices of the new tokens in the pass."""
        self._memory = memory
        self._pages = pages[share.table : share.table + share.pages]

    def attend(self, layer: int, query: Tensor, rule: AttentionRule) -> Tensor:
        """Attend to the session's keys, including the new ones, which must be stored.

        Shapes as in `AttentionSpan.over`.
        """
        first = self.first_seen(rule.window)
        keys, values = (self._gather(part[layer], first) for part in (self._memory.keys, self._memory.values))
        return self.over(query, keys, values, rule)

    def _gather(self, pages: Tensor, first: int) -> Tensor:
        """The keys or values of the tokens from `first` on: [1, heads, tokens, width]."""
        skipped = first // PAGE_TOKENS
        tokens = pages.index_select(0, self._pages[skipped:]).flatten(0, 1)
        offset = skipped * PAGE_TOKENS
        return tokens[first - offset : self.start + self.count - offset].transpose(0, 1).unsqueeze(0)


@dataclass(frozen=True, slots=True)
class PagedStep:
    """The attention step of a pass; it can be captured if no chunk is gathered."""

    memory: Pages
    inputs: PassInputs[Tensor]
    shape: PassShape
    kernels: Kernels | None
    """Attention kernels; None if every chunk is gathered."""
    gathered: Sequence[PagedSpan] = ()

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: AttentionRule) -> Tensor:
        """Store the new keys and values, then attend; shapes as in `AttentionStep.attend`."""
        keys, values = self.memory.keys[layer], self.memory.values[layer]
        store = _store if self.kernels is None else self.kernels.store
        store(key, value, keys, values, self.inputs.slots)
        if self.kernels is not None and self.shape.queries:
            out = self.kernels.attend(query, keys, values, self.inputs, rule, self.shape.queries)
        else:
            out = query.new_empty(1, query.shape[2], query.shape[1], value.shape[3])
        for span in self.gathered:
            out[:, span.rows] = span.attend(layer, query[:, :, span.rows], rule)
        return out


def _store(key: Tensor, value: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
    """Store every token on plain PyTorch; arguments as in `Kernels.store`, without slots of -1."""
    for new, pages in ((key, keys), (value, values)):
        pages.flatten(0, 1).index_copy_(0, slots, new[0].transpose(0, 1))
