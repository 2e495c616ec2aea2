"""The exponential race of coupled mode in one Triton kernel: the noise of every id stays in registers.

Triton's Philox gives the same bits as `specdec.rules.rng`. Its logarithm may round differently from the host's, so very
rarely a draft that the host would have kept is rejected; the draws stay exact.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from specdec.rules.rng import Lane

_BLOCK = 1024
"""Number of ids that one program compares."""


def race(p: Tensor, ids: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
    """The winner of each row's race and its arrival time, as in `specdec.rules.coupling.race_on_device`."""
    p, words = p.contiguous(), words.contiguous()
    rows, width = p.shape
    blocks = triton.cdiv(width, _BLOCK)
    arrivals = torch.empty(rows, blocks, dtype=torch.float64, device=p.device)
    columns = torch.empty(rows, blocks, dtype=torch.int64, device=p.device)
    launch = _block_winners[(rows, blocks)]
    # A fused operation would round differently from the host's.
    options = {"LANE": int(Lane.COUPLING), "BLOCK": _BLOCK, "enable_fp_fusion": False}
    with torch.cuda.device_of(p):
        launch(p, ids, words, arrivals, columns, rows, width, *ids.stride(), **options)
    first, block = arrivals.min(1, keepdim=True)
    return ids.gather(1, columns.gather(1, block))[:, 0], first[:, 0]


@triton.jit
def uniforms(seed: tl.tensor, position: tl.tensor, ids: tl.tensor, LANE: tl.constexpr) -> tl.tensor:  # noqa: N803
    """u(seed, position, id) in (0, 1), float64 and exact, of a block of int64 ids."""
    zero = position.to(tl.uint32) * 0
    first, second, _, _ = tl.philox(seed, ids.to(tl.uint32), position.to(tl.uint32), zero, zero + LANE)
    bits = (first.to(tl.int64) << 20) | (second.to(tl.int64) >> 12)
    return (bits.to(tl.float64) + 0.5) * 2.220446049250313e-16  # 2^-52


@triton.jit
def _block_winners(  # noqa: PLR0913 - a kernel takes every tensor as an argument
    p: tl.tensor,
    ids: tl.tensor,
    words: tl.tensor,
    arrivals: tl.tensor,
    columns: tl.tensor,
    rows: tl.tensor,
    width: tl.tensor,
    ids_row: tl.tensor,
    ids_column: tl.tensor,
    LANE: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
) -> None:
    """Store the arrival time and the column of the winner among one block of one row's ids."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = block * BLOCK + tl.arange(0, BLOCK)
    mass = tl.load(p + row * width + column, mask=column < width, other=0.0).to(tl.float64)
    arrival = tl.full((BLOCK,), float("inf"), tl.float64)
    if tl.max(mass, axis=0) > 0.0:  # most blocks of a filtered or greedy row have no possible id
        seed = tl.load(words + row) | (tl.load(words + rows + row) << 32)
        position = tl.load(words + 2 * rows + row)
        token = tl.load(ids + row * ids_row + column * ids_column, mask=column < width, other=0)
        noise = -tl.log(uniforms(seed, position, token, LANE))
        arrival = tl.where(mass > 0.0, noise / tl.where(mass > 0.0, mass, 1.0), arrival)
    best, place = tl.min(arrival, axis=0, return_indices=True)
    out = row * tl.num_programs(1) + block
    tl.store(arrivals + out, best)
    tl.store(columns + out, (block * BLOCK + place).to(tl.int64))
