"""Targets whose KV blocks are plain tensors, each served over a connection as if from another process."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import Pipe
from threading import Thread
from typing import Any

import torch

from verifier_service.vllm.kv.blocks import SharedBlocks
from verifier_service.vllm.kv.copies import BlockCopies
from verifier_service.vllm.kv.messages import Copied, SharedKv, Transfers
from verifier_service.vllm.kv.mover import VllmBlocks
from verifier_service.vllm.kv.port import KvAsker, KvPort

BLOCK = 32
BLOCKS = 8
LAYERS = 2
BLOCK_BYTES = LAYERS * 2 * BLOCK * 4 * 4


@dataclass(eq=False)
class PoolBlock:
    """A block of the pool."""

    block_id: int
    ref_cnt: int = 0


class Pool:
    """Stands for vLLM's pool of blocks: the hash of a block is a string."""

    def __init__(self) -> None:
        self.blocks = [PoolBlock(each) for each in range(BLOCKS)]
        self.cached: dict[str, PoolBlock] = {}

    def get_cached_block(self, block_hash: Any, kv_cache_group_ids: list[int]) -> list[Any] | None:
        return [self.cached[block_hash]] if block_hash in self.cached else None

    def touch(self, blocks: Sequence[Any]) -> None:
        for block in blocks:
            block.ref_cnt += 1

    def free_blocks(self, ordered_blocks: Any) -> None:
        for block in ordered_blocks:
            block.ref_cnt -= 1


@dataclass
class Request:
    """A request of vLLM."""

    request_id: str
    all_token_ids: list[int]
    cache_salt: str | None = None
    num_computed_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        return len(self.all_token_ids)

    @property
    def block_hashes(self) -> list[str]:
        tokens = self.all_token_ids
        return [f"{self.cache_salt}{tokens[:stop]}" for stop in range(BLOCK, len(tokens) + 1, BLOCK)]


class KvTarget:
    """A target with `ranks` workers, and its steps."""

    def __init__(self, ranks: int = 1, staged_blocks: int = 4, fingerprint: str = "f") -> None:
        self.fingerprint = fingerprint
        self.pool = Pool()
        self.blocks = SharedBlocks(BLOCK, BLOCKS, staged_blocks * BLOCK_BYTES, ranks)
        self.blocks.bind(self.pool)
        self.blocks.open(fingerprint, lambda _: None)
        shape = (BLOCKS, 2 // ranks, BLOCK, 4)
        self.caches = [[torch.zeros(shape) for _ in range(LAYERS)] for _ in range(ranks)]
        self.workers = [BlockCopies(caches, rank) for rank, caches in enumerate(self.caches)]
        self._loaded = Counter[str]()
        """Number of workers that have loaded each request."""

    def compute(self, request: Request, first: int, seed: int = 0) -> None:
        """Compute the whole blocks of a request in the pool's blocks from `first` on."""
        generator = torch.Generator().manual_seed(seed)
        for place, theirs in enumerate(request.block_hashes):
            self.pool.cached[theirs] = self.pool.blocks[first + place]
            for caches in self.caches:
                for cache in caches:
                    cache[first + place] = torch.rand(cache.shape[1:], generator=generator)
        request.num_computed_tokens = len(request.all_token_ids)
        self.blocks.computed(request)

    def load(self, request: Request, first: int, computed: int = 0) -> int:
        """Load what is on the stage into the pool's blocks from `first` on; return its number of tokens."""
        tokens = self.blocks.matched(request, computed)
        if tokens:
            self.blocks.load(request, range(first, BLOCKS), tokens)
        while self.step():
            pass
        return tokens

    def step(self) -> bool:
        """Run the copies of a pass; return whether any is under way."""
        transfers: Transfers = self.blocks.transfers()
        copied = Copied()
        for worker in self.workers:
            worker.begin(transfers)
        for worker in self.workers:
            ended, parts = worker.take()
            self._loaded.update(ended)
            copied = copied.joined(parts or Copied())
        loaded = {request for request, count in self._loaded.items() if count == len(self.workers)}
        for request in loaded:  # as vLLM, which waits for all of its workers
            del self._loaded[request]
        self.blocks.finished(loaded, copied)
        return self.blocks.busy


@contextmanager
def moved(target: KvTarget) -> Iterator[VllmBlocks]:
    """Yield the mover of a target, whose steps run on a thread of their own."""
    (ours, theirs), (orders, ending) = Pipe(), Pipe()
    port = KvPort(theirs, target.blocks.ask)
    target.blocks.open(target.fingerprint, port.answer)
    thread = Thread(target=port.await_order, args=(orders, target.step))
    thread.start()
    try:
        yield VllmBlocks(KvAsker(ours), SharedKv(target.fingerprint, BLOCK, BLOCK_BYTES // BLOCK))
    finally:
        ending.send_bytes(b"end")
        thread.join()
        ours.close()
