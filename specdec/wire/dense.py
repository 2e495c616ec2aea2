"""A q̂ over the whole vocabulary as floats on the wire, and as the very integers they stand for on either side."""

from collections.abc import Sequence

import torch
from torch import Tensor

from specdec.errors import FieldInvalid
from specdec.rules.dense import Dense
from specdec.rules.draft import SparseProbs

_DTYPES = {Dense.FP16: torch.float16, Dense.FP32: torch.float32}


def pack_dense(probs: Sequence[SparseProbs], form: Dense) -> bytes:
    """Values of the ids 0, 1, 2 and so on up to the last that has a weight anywhere, row after row."""
    rows = torch.zeros(len(probs), 1 + max(int(row.ids.max()) for row in probs), dtype=torch.float64)
    for values, row in zip(rows, probs, strict=True):
        values[row.ids] = row.weights.double() * 2.0**-form.bits
    return rows.to(_DTYPES[form]).numpy().tobytes()


def unpack_dense(data: bytes, form: Dense, count: int) -> list[SparseProbs]:
    """The q̂ of `count` tokens.

    Raises:
        FieldInvalid: not as many rows of whole values, or a row is not one that `pack_dense` makes.
    """
    dtype = _DTYPES[form]
    if not count or len(data) % (count * dtype.itemsize):
        raise FieldInvalid(f"{form} must be {count} rows of {dtype.itemsize}-byte values", form.value)
    values = torch.frombuffer(bytearray(data), dtype=dtype).double().view(count, -1)
    return [_row(scaled, form) for scaled in values * 2.0**form.bits]


def _row(scaled: Tensor, form: Dense) -> SparseProbs:
    if not bool(((scaled >= 0) & (scaled == scaled.round())).all()) or not 0 < float(scaled.sum()) < 2.0**62:
        raise FieldInvalid(f"{form} holds what is no multiple of 2^-{form.bits}, or nothing", form.value)
    ids = scaled.nonzero()[:, 0]
    return SparseProbs(ids, scaled[ids].long(), form)
