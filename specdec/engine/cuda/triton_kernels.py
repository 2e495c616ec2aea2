"""Attention over pages in Triton: each page is read once for all queries of a sequence that share a key head.

The keys of a sequence are split between programs, each with a running softmax, and another kernel joins their results
(split-KV, as in "Flash-Decoding"). Everything that differs between passes is in tensors, so a launch can be captured.
"""

import torch
import triton
from torch import Tensor

from specdec.engine.attention import AttentionRule
from specdec.engine.cuda import triton_code as code
from specdec.engine.cuda.inputs import PassInputs

_ROWS = 64
"""Largest number of query rows of one program."""
_TILE_BYTES = 1 << 14
"""Bytes of keys that a program loads at once."""
_PROGRAMS = 256
"""Number of programs that fill a large GPU."""
_SPLITS = 32
"""Largest number of parts that the keys of a sequence are split into."""
_COMPILED = {"num_stages": 2, "enable_fp_fusion": True}
"""Compiler options, explicit because Triton's defaults change."""


class TritonKernels:
    """Implementation of `Kernels` in Triton."""

    def __init__(self, programs: int = _PROGRAMS) -> None:
        """`programs` is the target number of programs; keys are split if sequences and heads give fewer."""
        self._programs = programs

    def store(self, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        _, heads, tokens, key_width = key.shape
        value_width = value.shape[3]
        with torch.cuda.device_of(key):
            code.store[(tokens, heads)](
                key, value, keys, values, slots, *key.stride()[1:], *value.stride()[1:],
                heads=heads, key_width=key_width, value_width=value_width,
                columns=triton.next_power_of_2(max(key_width, value_width)), **_COMPILED,
            )  # fmt: skip

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, inputs: PassInputs[Tensor], rule: AttentionRule, queries: int
    ) -> Tensor:
        _, query_heads, tokens, key_width = query.shape
        _, page_tokens, heads, value_width = values.shape
        sequences, groups = inputs.lengths.shape[0], query_heads // heads
        key_columns, value_columns = (max(16, triton.next_power_of_2(width)) for width in (key_width, value_width))
        rows = min(_ROWS, max(16, triton.next_power_of_2(queries * groups)))
        tiles = triton.cdiv(queries * groups, rows)
        splits = self._splits(sequences * heads * tiles)
        shape = (heads, splits, tokens, groups)
        sums = torch.empty(*shape, value_columns, dtype=torch.float32, device=query.device)
        tops, masses = torch.empty(2, *shape, dtype=torch.float32, device=query.device)
        out = torch.empty(1, tokens, query_heads, value_width, dtype=query.dtype, device=query.device)
        with torch.cuda.device_of(query):
            code.attend[(sequences, heads * tiles, splits)](
                query, keys, values, sums, tops, masses,
                inputs.starts, inputs.lengths, inputs.tables, inputs.pages, inputs.bits, inputs.positions,
                *query.stride()[1:], key_width**-0.5 if rule.scale is None else rule.scale,
                rule.softcap or 1.0, rule.window or 0, splits, tiles, tokens,
                heads=heads, groups=groups, tile_rows=rows, page_tokens=page_tokens,
                tile_keys=_keys_of_a_tile(max(key_columns, value_columns) * keys.element_size()),
                key_width=key_width, key_columns=key_columns, value_width=value_width, value_columns=value_columns,
                capped=rule.softcap is not None, windowed=rule.window is not None, **_COMPILED,
            )  # fmt: skip
            code.join[(tokens, query_heads)](
                sums, tops, masses, inputs.owner, sums if rule.sinks is None else rule.sinks, out, tokens,
                heads=heads, groups=groups, splits=splits,
                value_width=value_width, value_columns=value_columns, has_sinks=rule.sinks is not None, **_COMPILED,
            )  # fmt: skip
        return out

    def _splits(self, programs: int) -> int:
        """Number of parts, a power of two, that the keys of each sequence are split into."""
        return 1 << min(_SPLITS, max(1, self._programs // programs)).bit_length() - 1


def _keys_of_a_tile(row_bytes: int) -> int:
    """Number of keys of `row_bytes` each, a power of two, that a program loads at once."""
    return max(16, min(64, _TILE_BYTES // row_bytes))
