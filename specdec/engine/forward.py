"""One packed ragged forward pass: chunks of sessions in a pool -> their logits, and their KV in the pool."""

from collections.abc import Sequence

from torch import Tensor

from specdec.engine.batch import Chunk, pack
from specdec.engine.kv_backend import Run
from specdec.engine.kv_pool import KvPool
from specdec.engine.kv_store import H
from specdec.errors import InternalError


def forward(run: Run[H], pool: KvPool[H], chunks: Sequence[Chunk], vocab_size: int) -> Tensor:
    """Run all chunks, at least one, in one pass and append their KV; on any error no length changes.

    What a session has before the pass has stood the verdict of the last one, so its whole blocks may be shared now.
    See `Engine.forward`.
    """
    holdings = [pool[chunk.session] for chunk in chunks]
    batch = pack(chunks, [holding.length for holding in holdings], vocab_size)
    for chunk, holding in zip(chunks, holdings, strict=True):
        if holding.tree is not None:
            raise InternalError(f"session {chunk.session} has kept no path of its tree")
        pool.seal(chunk.session)
        if not pool.reserve(chunk.session, holding.length + len(chunk.tokens)):
            raise InternalError(f"no memory for {len(chunk.tokens)} more tokens of session {chunk.session}")
    logits = run(holdings, batch)
    for holding, chunk, tree in zip(holdings, chunks, batch.trees, strict=True):
        holding.grow(chunk.tokens, tree)
    return logits
