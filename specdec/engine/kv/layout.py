"""Shape and dtype of the keys and values of one token, independent of their storage."""

from dataclasses import dataclass

import torch
from torch import Tensor

from specdec.errors import InternalError


@dataclass(frozen=True, slots=True)
class KvLayout:
    """Layout of the keys and values of one token, the same in every layer."""

    layers: int
    """Number of layers."""
    heads: int
    """Number of key/value heads."""
    key_width: int
    """Elements of a key in one head."""
    value_width: int
    """Elements of a value in one head."""
    dtype: torch.dtype
    device: torch.device

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in all layers together."""
        return self.layers * self.heads * (self.key_width + self.value_width) * self.dtype.itemsize

    def check(self, kv: Tensor, tokens: int) -> None:
        """Check that `kv` can be the keys and values of `tokens` tokens.

        Raises:
            InternalError: the dtype differs, or the shape is not [layers, heads, tokens, key_width + value_width].
        """
        shape = (self.layers, self.heads, tokens, self.key_width + self.value_width)
        if kv.shape != shape or kv.dtype != self.dtype:
            raise InternalError(f"keys and values are {kv.dtype} {tuple(kv.shape)}, not {self.dtype} {shape}")
