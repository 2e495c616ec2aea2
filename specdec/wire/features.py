"""Fused states of the target, which travel from a verifier to a drafter whose draft head reads them."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from specdec.protos.drafter.v1 import drafter_pb2 as pb
from specdec.wire.codec import Codec, optional

FEATURE_BYTES = 2**20
"""Most bytes of features of one session that a verifier keeps and sends at once."""


@dataclass(frozen=True, slots=True)
class Features:
    """The target's states after consecutive committed tokens, fused for a draft head."""

    start: int
    """Position of the first token."""
    count: int
    """Number of tokens, at least one."""
    values: bytes = field(repr=False)
    """The states, token after token, all of one size."""

    @property
    def end(self) -> int:
        """Position after the last token."""
        return self.start + self.count

    def since(self, position: int) -> "Features | None":
        """Return the features from a position on, or None if there are none."""
        skipped = max(0, position - self.start)
        if not skipped:
            return self
        if skipped >= self.count:
            return None
        values = self.values[skipped * (len(self.values) // self.count) :]
        return Features(self.start + skipped, self.count - skipped, values)

    def joined(self, later: "Features | None") -> "Features":
        """Return these and later features; only the later ones if some between them are missing."""
        if later is None or later.end <= self.end:
            return self
        if later.start > self.end:
            return later
        more = later.since(self.end)
        return self if more is None else Features(self.start, self.count + more.count, self.values + more.values)

    def last(self, size: int) -> "Features":
        """Return the last features, as many as fit `size` bytes, at least one."""
        most = max(1, size * self.count // len(self.values))
        return self.since(self.end - most) or self

    @classmethod
    def of(cls, start: int, states: Tensor) -> "Features":
        """Return the features of the states [n, width], n at least 1, of the tokens from position `start` on."""
        return cls(start, len(states), states.contiguous().view(torch.uint8).numpy().tobytes())

    def states(self, width: int, dtype: torch.dtype) -> Tensor | None:
        """Return the states [n, width], or None if the message does not hold as many finite numbers."""
        if not self.count or len(self.values) != self.count * width * dtype.itemsize:
            return None
        states = torch.frombuffer(bytearray(self.values), dtype=dtype).view(self.count, width)
        return states if bool(states.isfinite().all()) else None


FEATURES = optional(Codec(Features, pb.Features))
