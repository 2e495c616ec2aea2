"""What one token's keys and values are, wherever they lie."""

from dataclasses import dataclass

import torch
from torch import Tensor

from specdec.errors import InternalError


@dataclass(frozen=True, slots=True)
class KvLayout:
    """One token's keys and values, alike in every layer."""

    layers: int
    heads: int
    """Key/value heads, not query heads."""
    key_width: int
    value_width: int
    dtype: torch.dtype
    device: torch.device

    @property
    def token_bytes(self) -> int:
        """Bytes one token takes over all layers."""
        return self.layers * self.heads * (self.key_width + self.value_width) * self.dtype.itemsize

    def check(self, kv: Tensor, tokens: int) -> None:
        """Refuse what cannot be the keys and values of so many tokens.

        Raises:
            InternalError: another shape or type than [layers, heads, tokens, key_width + value_width].
        """
        shape = (self.layers, self.heads, tokens, self.key_width + self.value_width)
        if kv.shape != shape or kv.dtype != self.dtype:
            raise InternalError(f"keys and values are {kv.dtype} {tuple(kv.shape)}, not {self.dtype} {shape}")
