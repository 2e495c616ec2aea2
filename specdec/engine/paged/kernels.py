"""What attention over pages asks of a device: to store new keys and values, and to attend to those in pages."""

from typing import Protocol

from torch import Tensor

from specdec.engine.attention import Rule
from specdec.engine.paged.inputs import Inputs


class Kernels(Protocol):
    """Everything that differs from pass to pass comes in tensors, so that a call can be captured and replayed."""

    def store(self, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        """Put new keys and values into their slots.

        Args:
            key: [1, heads, T, key width].
            value: [1, heads, T, value width].
            keys: [pages, page tokens, heads, key width], of one layer.
            values: [pages, page tokens, heads, value width].
            slots: [T]; what has slot -1 is not stored.
        """

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, inputs: Inputs[Tensor], rule: Rule, queries: int
    ) -> Tensor:
        """Attention of the tokens that have an owner.

        Args:
            query: [1, query heads, T, key width].
            keys: [pages, page tokens, heads, key width], of one layer.
            values: [pages, page tokens, heads, value width].
            inputs: of the pass; the new tokens are stored already.
            rule: how the layer attends.
            queries: most new tokens of a sequence, at most `inputs.MOST_NODES`.

        Returns:
            [1, T, query heads, value width]; zeros for tokens without an owner.
        """
