"""The nucleus of top-p in one kernel: each row's threshold is found by its bits, and nothing is sorted. Needs Triton.

Scores are at most 0, so the bits of their magnitudes are integers in the same order: 31 halvings find the very score.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 8192
"""Scores that a program looks at together."""
_OPTIONS = {"BLOCK": _BLOCK, "num_warps": 16, "enable_fp_fusion": False}


def floors(scores: Tensor, top_p: Tensor) -> Tensor:
    """The score, float32 [N, 1], of the last of the most likely tokens whose mass first reaches top_p.

    Args:
        scores: float32 [N, V], of each row the best is 0.
        top_p: float64 [N, 1].
    """
    scores = scores.contiguous()
    found = scores.new_empty(len(scores), 1)
    with torch.cuda.device_of(scores):
        _search[(len(scores),)](scores, top_p, found, scores.shape[1], **_OPTIONS)
    return found


@triton.jit
def _search(
    scores: tl.tensor,
    top_p: tl.tensor,
    found: tl.tensor,
    width: tl.tensor,
    BLOCK: tl.constexpr,  # noqa: N803
) -> None:
    """One row: the least magnitude, as bits, such that scores no further from 0 have the mass."""
    row = tl.program_id(0).to(tl.int64)
    wanted = tl.load(top_p + row) * _mass(scores + row * width, width, 0x7F800000, BLOCK)
    below, bits = -1, 0x7F800000  # infinity: every score is within it
    for _ in range(31):
        middle = below + (bits - below) // 2
        enough = _mass(scores + row * width, width, middle, BLOCK) >= wanted
        bits = tl.where(enough, middle, bits)
        below = tl.where(enough, below, middle)
    tl.store(found + row, -tl.cast(bits, tl.float32, bitcast=True))


@triton.jit
def _mass(scores: tl.tensor, width: tl.tensor, bits: tl.tensor, BLOCK: tl.constexpr) -> tl.tensor:  # noqa: N803
    """The sum of exp(score) over scores whose magnitude has at most these bits, float64."""
    mass = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, width, BLOCK):
        column = start + tl.arange(0, BLOCK)
        score = tl.load(scores + column, mask=column < width, other=-float("inf"))
        within = tl.abs(score).to(tl.int32, bitcast=True) <= bits
        mass += tl.where(within, tl.exp(score), 0.0).to(tl.float64)
    return tl.sum(mass, axis=0)
