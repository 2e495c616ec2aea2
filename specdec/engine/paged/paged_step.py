"""Attention of one pass over pages: new keys and values to their slots, short chunks by kernels, others gathered."""

from collections.abc import Sequence

from torch import Tensor

from specdec.engine.attention import Rule
from specdec.engine.paged.inputs import Inputs, Shape
from specdec.engine.paged.kernels import Kernels
from specdec.engine.paged.paged_span import PagedSpan
from specdec.engine.paged.pages import Pages


class Gathered:
    """A chunk that is gathered, and where it lies among the T."""

    def __init__(self, first: int, span: PagedSpan) -> None:
        self.rows = slice(first, first + span.count)
        self.span = span


class PagedStep:
    """The attention step of a pass; with nothing gathered it can be captured."""

    def __init__(
        self,
        memory: Pages,
        inputs: Inputs[Tensor],
        shape: Shape,
        kernels: Kernels | None,
        gathered: Sequence[Gathered] = (),
    ) -> None:
        """Without `kernels` every chunk must be gathered."""
        self._memory = memory
        self._inputs = inputs
        self._shape = shape
        self._kernels = kernels
        self._gathered = gathered

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: Rule) -> Tensor:
        """See `attention.Step`."""
        keys, values = self._memory.keys[layer], self._memory.values[layer]
        store = _store if self._kernels is None else self._kernels.store
        store(key, value, keys, values, self._inputs.slots)
        if self._kernels is not None and self._shape.queries:
            out = self._kernels.attend(query, keys, values, self._inputs, rule, self._shape.queries)
        else:
            out = query.new_empty(1, query.shape[2], query.shape[1], value.shape[3])
        for each in self._gathered:
            out[:, each.rows] = each.span.attend(layer, query[:, :, each.rows], rule)
        return out


def _store(key: Tensor, value: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
    """See `Kernels.store`; everything is stored."""
    for new, pages in ((key, keys), (value, values)):
        pages.flatten(0, 1).index_copy_(0, slots, new[0].transpose(0, 1))
