"""Attention over pages in Triton: every live page is read once for all queries of a sequence that share a key head.

The keys of a sequence are split between programs, each of which keeps a running softmax, and another kernel joins what
they found (split-KV, "flash decoding"). What differs from pass to pass is read from tensors: a launch can be captured.
"""

import torch
import triton
from torch import Tensor

from specdec.engine.attention import Rule
from specdec.engine.paged import triton_code as code
from specdec.engine.paged.inputs import Inputs

_ROWS = 64
"""Most query rows of one program."""
_TILE_BYTES = 1 << 14
"""Of the keys that a program looks at together."""
_PROGRAMS = 256
"""Enough to fill a large GPU."""
_SPLITS = 32
_COMPILED = {"num_stages": 2, "enable_fp_fusion": True}
"""How kernels are compiled; said aloud because Triton's defaults change."""


class TritonKernels:
    """See `kernels.Kernels`."""

    def __init__(self, programs: int = _PROGRAMS) -> None:
        """Where sequences and heads make fewer than so many programs, keys are split between more."""
        self._programs = programs

    def store(self, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        """See `Kernels.store`."""
        _, heads, tokens, key_width = key.shape
        value_width = value.shape[3]
        with torch.cuda.device_of(key):
            code.store[(tokens, heads)](
                key, value, keys, values, slots, *key.stride()[1:], *value.stride()[1:],
                heads=heads, key_width=key_width, value_width=value_width,
                columns=triton.next_power_of_2(max(key_width, value_width)), **_COMPILED,
            )  # fmt: skip

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, inputs: Inputs[Tensor], rule: Rule, queries: int
    ) -> Tensor:
        """See `Kernels.attend`."""
        _, query_heads, tokens, key_width = query.shape
        _, page_tokens, heads, value_width = values.shape
        sequences, groups = inputs.lengths.shape[0], query_heads // heads
        key_columns, value_columns = (max(16, triton.next_power_of_2(width)) for width in (key_width, value_width))
        rows = min(_ROWS, max(16, triton.next_power_of_2(queries * groups)))
        tiles = triton.cdiv(queries * groups, rows)
        splits = self._splits(sequences * heads * tiles)
        shape = (sequences, heads, splits, tiles * rows)
        sums = torch.empty(*shape, value_columns, dtype=torch.float32, device=query.device)
        tops, masses = torch.empty(2, *shape, dtype=torch.float32, device=query.device)
        out = torch.empty(1, tokens, query_heads, value_width, dtype=query.dtype, device=query.device)
        with torch.cuda.device_of(query):
            code.attend[(sequences, heads * tiles, splits)](
                query, keys, values, sums, tops, masses,
                inputs.starts, inputs.lengths, inputs.tables, inputs.pages, inputs.bits, inputs.positions,
                *query.stride()[1:], key_width**-0.5 if rule.scale is None else rule.scale,
                rule.softcap or 1.0, rule.window or 0, splits,
                heads=heads, groups=groups, tiles=tiles, tile_rows=rows, page_tokens=page_tokens,
                tile_keys=_keys_of_a_tile(max(key_columns, value_columns) * keys.element_size()),
                key_width=key_width, key_columns=key_columns, value_width=value_width, value_columns=value_columns,
                capped=rule.softcap is not None, windowed=rule.window is not None, **_COMPILED,
            )  # fmt: skip
            code.join[(tokens, query_heads)](
                sums, tops, masses, inputs.owner, inputs.starts, sums if rule.sinks is None else rule.sinks, out,
                heads=heads, groups=groups, tile_rows=tiles * rows, splits=splits,
                value_width=value_width, value_columns=value_columns, has_sinks=rule.sinks is not None, **_COMPILED,
            )  # fmt: skip
        return out

    def _splits(self, programs: int) -> int:
        """A power of two: into how many parts the keys of each sequence are split."""
        return 1 << min(_SPLITS, max(1, self._programs // programs)).bit_length() - 1


def _keys_of_a_tile(row_bytes: int) -> int:
    """A power of two: so many keys of `row_bytes` fit the memory of a program."""
    return max(16, min(64, _TILE_BYTES // row_bytes))
