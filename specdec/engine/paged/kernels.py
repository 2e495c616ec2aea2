"""What attention over pages needs of a device: to store new keys and values, and to attend to those in pages."""

from typing import Protocol

from torch import Tensor

from specdec.engine.attention import AttentionRule
from specdec.engine.paged.inputs import PassInputs


class Kernels(Protocol):
    """The two kernels. All that differs between passes comes in tensors, so a call can be captured and replayed."""

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
        """Attend with the tokens that have an owner.

        Args:
            query: [1, query heads, T, key width].
            keys: [pages, page tokens, heads, key width], of one layer.
            values: [pages, page tokens, heads, value width].
            inputs: of the pass; the keys and values of the new tokens are stored already.
            rule: how the layer attends.
            queries: largest number of new tokens of a sequence, at most `inputs.MOST_NODES`.

        Returns:
            [1, T, query heads, value width]; zeros for tokens without an owner.
        """
