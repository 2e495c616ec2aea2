"""Attention over all slabs of a pass in one call for each layer: `host_attention.cpp`, as the host's passes use it."""

import logging
from array import array
from collections.abc import Iterator, Sequence
from ctypes import Structure, byref, c_float, c_int64, c_void_p
from functools import cached_property, partial
from itertools import accumulate, chain
from pathlib import Path

import torch
from torch import Tensor

from specdec.engine.attention import AttentionRule, AttentionStep
from specdec.engine.batch import PackedBatch
from specdec.engine.cpp_library import SOURCES, HostCode, LibraryMissing, load_library
from specdec.engine.decoder import Decoder
from specdec.engine.host import Slab, SlabSpan, open_host_backend, step_by_session
from specdec.engine.kv_backend import KvBackend, OpenKvBackend
from specdec.engine.kv_layout import KvLayout
from specdec.engine.span import FOLD_LIMIT
from specdec.errors import InternalError, ModelRefused
from specdec.rules.tree import Tree

_log = logging.getLogger(__name__)

_BLOCK_NUMBERS = 9
"""int64 numbers of a block in `host_attention.cpp`."""
_BLOCK_TOKENS = 16
"""New tokens of a session that attend together, so that a tile of keys is read once for all of them."""


class _Packed(Structure):
    _fields_ = (("data", c_void_p), ("head", c_int64), ("token", c_int64))

    def point(self, packed: Tensor) -> None:
        """Point to a tensor [1, heads, tokens, width], which must outlive the call."""
        self.data = packed.data_ptr()
        _, self.head, self.token, _ = packed.stride()


class _Call(Structure):
    _fields_ = (
        ("blocks", c_void_p),
        *((name, c_int64) for name in ("block_count", "threads", "layer", "heads", "group")),
        *((name, c_int64) for name in ("key_width", "value_width", "window")),
        *((name, _Packed) for name in ("query", "key", "value")),
        ("out", c_void_p),
        ("sinks", c_void_p),
        ("scale", c_float),
        ("softcap", c_float),
    )


class HostOperator:
    """The operator's code, loaded into this process."""

    def __init__(self, folder: Path = SOURCES) -> None:
        """Build it from the sources in `folder`, which takes a few seconds, unless it is in the user's cache.

        Raises:
            LibraryMissing: it cannot be had on this machine.
        """
        library = load_library(folder / "host_attention.cpp", [folder / "lanes.h"])
        self._functions = {torch.float32: library.attend_float32, torch.bfloat16: library.attend_bfloat16}
        for function in self._functions.values():
            function.argtypes, function.restype = (c_void_p,), None

    def takes(self, dtype: torch.dtype) -> bool:
        return dtype in self._functions

    def attend(self, dtype: torch.dtype, call: _Call) -> None:
        """Do what `call` says over tensors of `dtype`; other Python threads run meanwhile."""
        self._functions[dtype](byref(call))


class _Share:
    """The part of one session in a pass."""

    def __init__(self, slab: Slab, token: int, count: int, tree: Tree | None) -> None:
        self.token = token
        """The session's first new token in the packed row."""
        self.count = count
        self.tree = tree
        self._slab = slab

    @cached_property
    def span(self) -> SlabSpan:
        """The share on plain PyTorch."""
        return SlabSpan(self._slab, self.count, self.tree)

    def blocks(self) -> Iterator[tuple[int, ...]]:
        """The share as blocks of `host_attention.cpp`; the slab and the tree must outlive their use."""
        slab, count = self._slab, self.count
        whole = (slab.keys.data_ptr(), slab.values.data_ptr(), slab.keys.shape[3], slab.length, count, self.token)
        sees = 0 if self.tree is None else self.tree.ancestors.data_ptr()
        for first in range(0, count, _BLOCK_TOKENS):
            yield *whole, first, min(_BLOCK_TOKENS, count - first), sees


class OperatorStep:
    """The attention step of a pass over several sessions in slabs.

    In each layer there is one call of the operator for the sessions with few new tokens. The others have queries enough
    to be worth products of their own.
    """

    def __init__(self, operator: HostOperator, slabs: Sequence[Slab], batch: PackedBatch) -> None:
        self._operator = operator
        self._tokens = len(batch.tokens)
        self._dtype = slabs[0].keys.dtype
        self._slabs = slabs  # whose memory the blocks point to
        starts = [0, *accumulate(batch.counts)]
        shares = [_Share(*share) for share in zip(slabs, starts[:-1], batch.counts, batch.trees, strict=True)]
        short = [share for share in shares if share.count <= FOLD_LIMIT]
        chains, trees = ([each for each in short if (each.tree is None) is chained] for chained in (True, False))
        self._long = [share for share in shares if share.count > FOLD_LIMIT]
        self._long_or_forked = self._long + trees
        self._blocks = array("q", chain.from_iterable(block for share in chains for block in share.blocks()))
        self._chain_blocks = len(self._blocks) // _BLOCK_NUMBERS
        self._blocks.extend(chain.from_iterable(block for share in trees for block in share.blocks()))
        self._call = _Call(
            blocks=self._blocks.buffer_info()[0],
            threads=torch.get_num_threads(),
            heads=slabs[0].keys.shape[2],
            key_width=slabs[0].keys.shape[-1],
            value_width=slabs[0].values.shape[-1],
        )

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: AttentionRule) -> Tensor:
        """Attend with each session's queries to its own keys; shapes as in `AttentionStep.attend`."""
        self._check(query, key, value)
        parts = [part if part.stride(3) == 1 else part.contiguous() for part in (query, key, value)]
        out = query.new_empty(1, self._tokens, query.shape[1], value.shape[3])
        sinks = None if rule.sinks is None else rule.sinks.to(torch.float32).contiguous()
        call, blocks, beside = self._call, len(self._blocks) // _BLOCK_NUMBERS, self._long
        if rule.window is not None:  # which the operator does not have for trees
            blocks, beside = self._chain_blocks, self._long_or_forked
        call.layer, call.group, call.window = layer, query.shape[1] // call.heads, rule.window or 0
        for packed, part in zip((call.query, call.key, call.value), parts, strict=True):
            packed.point(part)
        call.block_count, call.out = blocks, out.data_ptr()
        call.sinks = None if sinks is None else sinks.data_ptr()
        call.scale = call.key_width**-0.5 if rule.scale is None else rule.scale
        call.softcap = rule.softcap or 0.0
        self._operator.attend(self._dtype, call)
        for share in beside:
            rows = slice(share.token, share.token + share.count)
            out[:, rows] = share.span.attend(layer, query[:, :, rows], key[:, :, rows], value[:, :, rows], rule)
        return out

    def _check(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        """Refuse what the operator would read or write beside its memory."""
        call, tokens = self._call, self._tokens
        shapes = (
            (1, query.shape[1] // call.heads * call.heads, tokens, call.key_width),
            (1, call.heads, tokens, call.key_width),
            (1, call.heads, tokens, call.value_width),
        )
        dtypes = {query.dtype, key.dtype, value.dtype}
        if (query.shape, key.shape, value.shape) != shapes or dtypes != {self._dtype}:
            raise InternalError(f"a layer attends with {query.shape}, {key.shape}, {value.shape} and not with {shapes}")


def host_backend(attention: HostCode) -> OpenKvBackend[Slab]:
    """What opens slabs on the host, with passes that attend as `attention` says.

    Raises:
        ModelRefused: the operator is asked for and cannot be had; the message says why.
    """
    if attention == "torch":
        return open_host_backend
    try:
        return partial(open_operator_backend, HostOperator())
    except LibraryMissing as missing:
        if attention == "operator":
            raise ModelRefused(f"model.attention is `operator`, which cannot be had: {missing}") from None
        _log.info("attention goes from session to session, because its operator cannot be had: %s", missing)
        return open_host_backend


def open_operator_backend(operator: HostOperator, decoder: Decoder, layout: KvLayout, budget: int) -> KvBackend[Slab]:
    """Open slabs within a budget in bytes, as `open_host_backend` does, with passes that attend by the operator."""

    def make_step(slabs: Sequence[Slab], batch: PackedBatch) -> AttentionStep:
        if min(batch.counts) > FOLD_LIMIT:
            return step_by_session(slabs, batch)
        return OperatorStep(operator, slabs, batch)

    return open_host_backend(decoder, layout, budget, make_step if operator.takes(layout.dtype) else step_by_session)
