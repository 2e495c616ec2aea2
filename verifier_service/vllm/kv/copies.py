"""Copies between the blocks of a worker and bytes, on a thread of their own. This module does not import vLLM."""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from verifier_service.vllm.kv.messages import BlockCopy, BlockLoad, Bytes, Copied, Transfers

_Done = Callable[[], None]


class BlockCopies:
    """Copies of the blocks of one rank. Passes go on meanwhile: vLLM neither reads nor reuses the blocks until then."""

    def __init__(self, caches: Sequence[Tensor], rank: int) -> None:
        """Create a copier.

        Args:
            caches: KV of each layer, [block, ...]; a block has the same size in all ranks.
            rank: rank of this worker.
        """
        self._caches = list({cache.data_ptr(): cache for cache in caches}.values())
        self._rank = rank
        self._sizes = [cache[0].numel() * cache.element_size() for cache in self._caches]
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kv")
        self._stream = torch.cuda.Stream() if self._caches[0].is_cuda else None  # type: ignore[no-untyped-call]
        self._jobs: deque[Future[_Done]] = deque()
        self._loaded: set[str] = set()
        self._parts: dict[int, dict[int, Bytes]] = {}

    @property
    def block_bytes(self) -> int:
        """Bytes of a block in this rank, over all layers."""
        return sum(self._sizes)

    @property
    def layout(self) -> str:
        """Shape and dtype of a block in each layer."""
        return str([(tuple(cache.shape[1:]), str(cache.dtype)) for cache in self._caches])

    def begin(self, transfers: Transfers) -> None:
        """Begin copies, after the work that the current stream of a device has been given."""
        if self._stream is not None and (transfers.loads or transfers.copies):
            self._stream.wait_stream(torch.cuda.current_stream())
        self._jobs.extend(self._thread.submit(self._load, load) for load in transfers.loads)
        self._jobs.extend(self._thread.submit(self._copy, copy) for copy in transfers.copies)

    def take(self) -> tuple[set[str], Copied | None]:
        """Return the requests whose loads have ended since the last call, and the copies; raise if a copy failed."""
        while self._jobs and self._jobs[0].done():
            self._jobs.popleft().result()()
        loaded, self._loaded = self._loaded, set()
        parts, self._parts = self._parts, {}
        return loaded, Copied(parts) if parts else None

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(cancel_futures=True)

    def _load(self, load: BlockLoad) -> _Done:
        begin = self._rank * self.block_bytes
        rows = torch.from_numpy(np.stack([value[begin : begin + self.block_bytes] for value in load.values]))
        ids = torch.tensor(load.block_ids)
        with torch.cuda.stream(self._stream):
            for cache, part in zip(self._caches, torch.split(rows, self._sizes, dim=1), strict=True):
                values = part.contiguous().view(cache.dtype).view(len(ids), *cache.shape[1:])
                cache[ids.to(cache.device)] = values.to(cache.device)
        self._synchronize()
        return partial(self._add_loaded, load.request) if load.last else _nothing

    def _copy(self, copy: BlockCopy) -> _Done:
        ids = torch.tensor(copy.block_ids)
        with torch.cuda.stream(self._stream):
            layers = [cache[ids.to(cache.device)].reshape(len(ids), -1).view(torch.uint8) for cache in self._caches]
            rows: Any = torch.cat(layers, dim=1).cpu().numpy()
        self._synchronize()
        return partial(self._add_copy, copy.number, rows)

    def _add_loaded(self, request: str) -> None:
        self._loaded.add(request)

    def _add_copy(self, number: int, rows: Bytes) -> None:
        self._parts[number] = {self._rank: rows}

    def _synchronize(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()


def _nothing() -> None:
    """End a part of a load."""
