"""Small KV pools over either store, with keys and values that identify their token."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from specdec.engine.cpu.slabs import SlabStore
from specdec.engine.cuda.pages import PageStore
from specdec.engine.kv.layout import KvLayout
from specdec.engine.kv.pool import KvPool
from specdec.engine.kv.store import KvStore
from specdec.rules.blocks import BLOCK_TOKENS
from specdec.trees.tree import Tree

LAYOUT = KvLayout(layers=2, heads=1, key_width=64, value_width=64, dtype=torch.float32, device=torch.device("cpu"))
PAGE = BLOCK_TOKENS
PAGE_BYTES = PAGE * LAYOUT.token_bytes
STORES: dict[str, Callable[[KvLayout, int], KvStore[Any]]] = {"slabs": SlabStore, "pages": PageStore}
Pool = Callable[[int], KvPool[Any]]


def make(memory: str, pages: int) -> KvPool[Any]:
    """Return a pool of that many pages over a kind of store."""
    store = STORES[memory](LAYOUT, pages * PAGE_BYTES)
    assert store.page_tokens == PAGE
    return KvPool(store, "model")


def text(length: int, start: int = 0) -> list[int]:
    """Return consecutive tokens."""
    return list(range(start, start + length))


def numbers(tokens: Sequence[int]) -> torch.Tensor:
    """Return keys and values whose numbers all equal their token."""
    return torch.tensor(tokens, dtype=torch.float32)[:, None].expand(LAYOUT.layers, LAYOUT.heads, -1, 128)


def run(kv: KvPool[Any], session: str, tokens: Sequence[int], tree: Tree | None = None) -> None:
    """Compute tokens as a pass does."""
    sequence = kv[session]
    kv.seal(session)
    assert kv.reserve(session, sequence.length + len(tokens))
    sequence.append(tokens, numbers(tokens))
    sequence.tree = tree


def holds(kv: KvPool[Any], session: str) -> bool:
    """Whether the session's keys and values belong to its tokens."""
    sequence = kv[session]
    return torch.equal(sequence.read(0, sequence.length), numbers(sequence.tokens))


def pages(kv: KvPool[Any]) -> tuple[int, int]:
    """Return the numbers of live and cached pages."""
    return kv.memory.live // PAGE_BYTES, kv.memory.cached // PAGE_BYTES
