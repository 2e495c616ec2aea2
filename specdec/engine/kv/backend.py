"""Storage of keys and values, and passes over them: the interface to each device."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic

from torch import Tensor

from specdec.engine.batch import Chunk, PackedBatch, pack
from specdec.engine.decoder import Decoder
from specdec.engine.kv.layout import KvLayout
from specdec.engine.kv.pool import KvPool
from specdec.engine.kv.store import KvStore, S
from specdec.errors import InternalError

RunPass = Callable[[Sequence[S], PackedBatch], Tensor]
"""Runs a packed pass. Returns logits of the tokens `batch.keep`, float32 [len(keep), vocab_size], as a copy.

The pass writes the keys and values of the new tokens after those of each sequence. The caller then appends the tokens
to the sequences.
"""


@dataclass(frozen=True, slots=True)
class KvBackend(Generic[S]):
    """The memory of an engine, and the function that runs passes over it."""

    store: KvStore[S]
    run: RunPass[S]
    warm: Callable[[], None]
    """Prepares the backend before the first session is admitted, for example by capturing common passes."""


OpenKvBackend = Callable[[Decoder, KvLayout, int], KvBackend[S]]
"""Opens a backend for a model's keys and values with a budget in bytes."""


def forward(
    run: RunPass[S], pool: KvPool[S], chunks: Sequence[Chunk], vocab_size: int, *, states: bool = False
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Run at least one chunk in one pass and append the keys and values; on any error no length changes.

    All drafts of a sequence are judged before its next pass, so its whole blocks are shared here.

    Returns:
        The logits, and if `states` is set, the states [T, hidden] of all tokens that enter each tapped layer.

    Raises:
        InternalError: a chunk is malformed, or its session is unknown, over its limit, without memory or with a tree.
    """
    sequences = [pool[chunk.session] for chunk in chunks]
    batch = pack(chunks, [sequence.length for sequence in sequences], vocab_size, states=states)
    for chunk, sequence in zip(chunks, sequences, strict=True):
        if sequence.tree is not None:
            raise InternalError(f"session {chunk.session} has kept no path of its tree")
        pool.seal(chunk.session)
        if not pool.reserve(chunk.session, sequence.length + len(chunk.tokens)):
            raise InternalError(f"no memory for {len(chunk.tokens)} more tokens of session {chunk.session}")
    logits = run(sequences, batch)
    for sequence, chunk, tree in zip(sequences, chunks, batch.trees, strict=True):
        sequence.grow(chunk.tokens, tree)
    return logits, () if batch.states is None else batch.states.layers
