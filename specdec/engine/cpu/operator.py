"""Attention of the host's passes by `host_attention.cpp`: one call for each layer over all slabs of a pass."""

import logging
from array import array
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache, cached_property
from itertools import accumulate, chain
from pathlib import Path

import torch
from torch import Tensor

from specdec.engine.attention import SIGNATURE, AttentionRule, attending
from specdec.engine.batch import PackedBatch
from specdec.engine.cpu.cpp_library import SOURCES, TORCH_FLAGS, HostCode, LibraryMissing, load_library
from specdec.engine.cpu.slabs import AttendIn, Slab, SlabSpan, by_session, open_host_backend
from specdec.engine.decoder import Decoder
from specdec.engine.kv.backend import KvBackend, OpenKvBackend
from specdec.engine.kv.layout import KvLayout
from specdec.errors import ModelRefused
from specdec.trees.tree import Tree

_log = logging.getLogger(__name__)

_DTYPES = (torch.float32, torch.bfloat16)
"""Dtypes that the operator supports."""
_BLOCK_NUMBERS = 9
"""Number of int64 values in a block of `host_attention.cpp`."""
_BLOCK_TOKENS = 16
"""New tokens of a session that attend together, so that a tile of keys is read once for all of them."""
_MOST_TOKENS = 512
"""Most new tokens of a session for which the operator attends. For more tokens after long contexts, PyTorch's products
are faster. They need the interpreter in each layer, however, and wait for it while another thread holds it."""


torch.library.define("specdec::attend_some", SIGNATURE)
torch.library.define(
    "specdec::begin", "(Tensor blocks, Tensor keys, Tensor values, int tokens, int chains, bool others) -> ()"
)
torch.library.define("specdec::end", "(Tensor blocks) -> ()")


def load_attention(folder: Path = SOURCES) -> None:
    """Register the operator in this process; it is built from `folder` unless it is cached.

    Raises:
        LibraryMissing: the operator is not available on this machine.
    """
    library = load_library(folder / "host_attention.cpp", [folder / "lanes.h"], TORCH_FLAGS)
    library.serve.argtypes, library.serve.restype = (), None
    library.serve()


_load = cache(load_attention)


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
        """The share for attention on plain PyTorch."""
        return SlabSpan(self._slab, self.count, self.tree)

    def blocks(self) -> Iterator[tuple[int, ...]]:
        """The share as blocks of `host_attention.cpp`; the slab and the tree must outlive their use."""
        slab, count = self._slab, self.count
        whole = (slab.keys.data_ptr(), slab.values.data_ptr(), slab.keys.shape[3], slab.length, count, self.token)
        sees = 0 if self.tree is None else self.tree.ancestors.data_ptr()
        for first in range(0, count, _BLOCK_TOKENS):
            yield *whole, first, min(_BLOCK_TOKENS, count - first), sees


class OperatorStep:
    """The attention step of a pass over several sessions in slabs, between `begin` and the end of that block.

    Each layer calls the operator once for all sessions, except sessions with very many new tokens, which attend by
    separate products.
    """

    def __init__(self, slabs: Sequence[Slab], batch: PackedBatch) -> None:
        self._tokens = len(batch.tokens)
        self._slabs = slabs  # whose memory the blocks point to
        starts = [0, *accumulate(batch.counts)]
        shares = [_Share(*share) for share in zip(slabs, starts[:-1], batch.counts, batch.trees, strict=True)]
        short = [share for share in shares if share.count <= _MOST_TOKENS]
        chains, trees = ([each for each in short if (each.tree is None) is chained] for chained in (True, False))
        self._long = [share for share in shares if share.count > _MOST_TOKENS]
        self._long_or_forked = self._long + trees
        blocks = array("q", chain.from_iterable(block for share in chains for block in share.blocks()))
        self._chain_blocks = len(blocks) // _BLOCK_NUMBERS
        blocks.extend(chain.from_iterable(block for share in trees for block in share.blocks()))
        self._blocks = torch.frombuffer(blocks, dtype=torch.int64).view(-1, _BLOCK_NUMBERS)

    @contextmanager
    def begin(self) -> Iterator[None]:
        """Send this thread's attention calls here until the block ends or raises."""
        keys, values, others = self._slabs[0].keys, self._slabs[0].values, bool(self._long)
        with attending(self):
            torch.ops.specdec.begin(self._blocks, keys, values, self._tokens, self._chain_blocks, others)
            try:
                yield
            finally:
                torch.ops.specdec.end(self._blocks)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: AttentionRule) -> Tensor:
        """Attend with each session's queries to its own keys; shapes as in `AttentionStep.attend`."""
        out: Tensor = torch.ops.specdec.attend_some(query, key, value, layer, *rule)
        # The operator does not have windows for trees.
        for share in self._long if rule.window is None else self._long_or_forked:
            rows = slice(share.token, share.token + share.count)
            out[:, rows] = share.span.attend(layer, query[:, :, rows], key[:, :, rows], value[:, :, rows], rule)
        return out


def host_backend(attention: HostCode) -> OpenKvBackend[Slab]:
    """The function that opens slabs on the host, with the attention selected by `attention`.

    Raises:
        ModelRefused: `attention` requires the operator, which is not available; the message gives the reason.
    """
    if attention == "torch":
        return open_host_backend
    try:
        _load()
    except LibraryMissing as missing:
        if attention == "operator":
            raise ModelRefused(f"model.attention is `operator`, which cannot be had: {missing}") from None
        _log.info("attention goes from session to session, because its operator cannot be had: %s", missing)
        return open_host_backend
    return open_operator_backend


def open_operator_backend(decoder: Decoder, layout: KvLayout, budget: int) -> KvBackend[Slab]:
    """Open slabs within a budget in bytes, as `open_host_backend` does, with passes that attend by the operator."""
    return open_host_backend(decoder, layout, budget, by_operator if layout.dtype in _DTYPES else by_session)


def host_attention(attention: HostCode, dtype: torch.dtype) -> AttendIn:
    """The attention of passes over slabs of a dtype, selected by `attention`.

    Raises:
        ModelRefused: as `host_backend`.
    """
    return by_operator if host_backend(attention) is open_operator_backend and dtype in _DTYPES else by_session


def by_operator(slabs: Sequence[Slab], batch: PackedBatch) -> AbstractContextManager[None]:
    """Attend by the operator in this thread, unless every session of the pass has very many tokens."""
    return by_session(slabs, batch) if min(batch.counts) > _MOST_TOKENS else OperatorStep(slabs, batch).begin()
