"""The forms in which a q̂ over the whole vocabulary travels: exact, and far too large for anything but tests."""

from enum import StrEnum


class Dense(StrEnum):
    """What q is rounded to before it is drawn from; each value is an integer multiple of 2^-bits, so it is exact."""

    FP16 = "dense_fp16"
    FP32 = "dense_fp32"

    @property
    def bits(self) -> int:
        """Of fp16 all there are; an fp32 that is smaller is rounded to them, so that sums of weights stay integers."""
        return 24 if self is Dense.FP16 else 40
