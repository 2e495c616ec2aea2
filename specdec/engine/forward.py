"""One packed ragged forward pass: chunks of sessions in a pool -> their logits, and their KV in the pool."""

from collections.abc import Sequence

import torch
from torch import Tensor

from specdec.engine.attention import attending
from specdec.engine.batch import Chunk, pack
from specdec.engine.decoder import Decoder
from specdec.engine.kv_pool import KvPool
from specdec.engine.packed_step import PackedStep, Span
from specdec.errors import InternalError


def forward(decoder: Decoder, pool: KvPool, chunks: Sequence[Chunk]) -> Tensor:
    """Run all chunks in one pass and append their KV; on any error no length changes. See `Engine.forward`.

    What a session has before the pass has stood the verdict of the last one, so its whole blocks may be shared now.
    """
    if not chunks:
        return torch.empty(0, decoder.vocab_size, device=decoder.device)
    slabs = [pool[chunk.session] for chunk in chunks]
    batch = pack(chunks, [slab.length for slab in slabs], decoder.vocab_size)
    for chunk, slab in zip(chunks, slabs, strict=True):
        if slab.tree is not None:
            raise InternalError(f"session {chunk.session} has kept no path of its tree")
        pool.seal(chunk.session)
        if not pool.reserve(chunk.session, slab.length + len(chunk.tokens)):
            raise InternalError(f"no memory for {len(chunk.tokens)} more tokens of session {chunk.session}")
    spans = [Span(*share) for share in zip(slabs, batch.counts, batch.trees, strict=True)]
    with attending(PackedStep(spans)):
        logits = decoder.logits(batch.tokens, batch.positions, batch.keep)
    for slab, chunk, tree in zip(slabs, chunks, batch.trees, strict=True):
        slab.grow(chunk.tokens, tree)
    return logits
