"""Blocks of KV that a target on vLLM exchanges, known by our chain of hashes. This module does not import vLLM."""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Protocol

import numpy as np

from specdec.errors import InternalError
from specdec.rules import blocks
from verifier_service.vllm.kv.messages import (
    BlockCopy,
    BlockLoad,
    Bytes,
    Copied,
    Find,
    KvAnswer,
    Question,
    Read,
    Transfers,
    Write,
)

_PASS_BYTES = 2**26
"""Bytes of KV to load that travel with one pass."""
_MOST_READS = 8
"""Number of unfinished reads, whose blocks cannot be reused; more are refused."""


class BlockPool(Protocol):
    """Part of vLLM's pool of blocks."""

    def get_cached_block(self, block_hash: Any, kv_cache_group_ids: list[int]) -> list[Any] | None:
        """Return the block of a hash of vLLM in each group, or None if it is not cached."""

    def touch(self, blocks: Sequence[Any]) -> None:
        """Keep blocks from being reused."""

    def free_blocks(self, ordered_blocks: Iterable[Any]) -> None:
        """Undo `touch`."""


@dataclass(slots=True)
class _Sequence:
    """Hashes of the blocks of a request."""

    root: bytes
    hashes: list[bytes] = field(default_factory=list)
    start: int = 0
    """Index of the first block that the last match would load."""
    known: int = 0
    """Number of blocks that are recorded; fewer have KV after a preemption."""

    def grow(self, tokens: Sequence[int], count: int, block_tokens: int) -> list[bytes]:
        """Return the hashes of at least the first `count` blocks."""
        if count > len(self.hashes):
            new = tokens[len(self.hashes) * block_tokens : count * block_tokens]
            last = self.hashes[-1] if self.hashes else self.root
            self.hashes += block_hashes(last, new, block_tokens)
        return self.hashes


@dataclass(slots=True)
class _Reading:
    """Unfinished read."""

    kept: Sequence[Any]
    """Blocks of vLLM's pool that are kept."""
    parts: dict[int, Bytes] = field(default_factory=dict)
    """Bytes of each rank that has copied them."""


class SharedBlocks:
    """Blocks of KV in vLLM's prefix cache and on the stage, which holds blocks that no request has loaded yet.

    It belongs to the thread of the steps; only `ask` may be called by others. Questions wait for the next pass, or for
    `transfers` while there is none. A value on the stage was checked by the verifier.
    """

    def __init__(self, block_tokens: int, most_blocks: int, staged_bytes: int, ranks: int) -> None:
        """Create an empty set.

        Args:
            block_tokens: number of tokens in a block of vLLM, a multiple of `specdec.rules.blocks.BLOCK_TOKENS`.
            most_blocks: number of blocks in vLLM's pool.
            staged_bytes: bytes for staged blocks; the oldest ones are dropped for new ones.
            ranks: number of workers, each of which has a part of every block.
        """
        self._block_tokens = block_tokens
        self._most_blocks = most_blocks
        self._staged_bytes = staged_bytes
        self._ranks = ranks
        self._fingerprint = ""
        self._pool: BlockPool | None = None
        self._answer: Callable[[KvAnswer], object] = lambda _: None
        self._questions: deque[Question] = deque()
        self._sequences: dict[str, _Sequence] = {}
        self._cached: OrderedDict[bytes, Any] = OrderedDict()
        """vLLM's hash of each block that was computed or loaded, by our hash, oldest first."""
        self._staged: OrderedDict[bytes, Bytes] = OrderedDict()
        self._staged_size = 0
        self._outgoing: deque[BlockLoad] = deque()
        self._loading: set[str] = set()
        self._copies: list[BlockCopy] = []
        self._reading: dict[int, _Reading] = {}

    def open(self, fingerprint: str, answer: Callable[[KvAnswer], object]) -> None:
        """Begin to exchange blocks of one fingerprint; `answer` is called with the answer to each question."""
        self._fingerprint, self._answer = fingerprint, answer

    def bind(self, pool: BlockPool) -> None:
        """Set vLLM's pool of blocks."""
        self._pool = pool

    def ask(self, question: Question) -> None:
        """Queue a question. Any thread may call this."""
        self._questions.append(question)

    @property
    def busy(self) -> bool:
        """Whether copies are under way, or questions wait."""
        return bool(self._questions or self._loading or self._reading)

    def matched(self, request: Any, computed: int) -> int:
        """Return the number of tokens after the first `computed` ones, whole blocks, that are on the stage.

        The last token of a request is never loaded, because its logits begin the output.
        """
        sequence = self._sequence(request)
        sequence.start = computed // self._block_tokens
        whole = (request.num_tokens - 1) // self._block_tokens
        hashes = sequence.grow(request.all_token_ids, whole, self._block_tokens)[sequence.start : whole]
        return sum(1 for _ in takewhile(self._staged.__contains__, hashes)) * self._block_tokens

    def load(self, request: Any, block_ids: Sequence[int], tokens: int) -> None:
        """Load the first `tokens` tokens of the last match of a request into its blocks, which are `block_ids`."""
        sequence = self._sequence(request)
        stop = sequence.start + tokens // self._block_tokens
        values = [self._unstaged(each) for each in sequence.hashes[sequence.start : stop]]
        ids = block_ids[sequence.start : stop]
        each = max(_PASS_BYTES // values[0].nbytes, 1)
        for begin in range(0, len(ids), each):
            end = begin + each
            self._outgoing.append(BlockLoad(request.request_id, ids[begin:end], values[begin:end], end >= len(ids)))
        self._loading.add(request.request_id)

    def computed(self, request: Any) -> None:
        """Record the blocks of a request that have KV and are in vLLM's prefix cache."""
        whole = min(request.num_computed_tokens // self._block_tokens, len(request.block_hashes))
        sequence = self._sequence(request)
        known, sequence.known = sequence.known if sequence.known <= whole else 0, whole
        hashes = sequence.grow(request.all_token_ids, whole, self._block_tokens)
        for place in range(known, whole):
            self._cached[hashes[place]] = request.block_hashes[place]
            self._cached.move_to_end(hashes[place])
        while len(self._cached) > self._most_blocks:
            self._cached.popitem(last=False)

    def forget(self, request: str) -> None:
        """Drop the hashes of a request that has ended."""
        self._sequences.pop(request, None)

    def transfers(self) -> Transfers:
        """Answer the waiting questions; return the copies that begin now."""
        while self._questions:
            self._take(self._questions.popleft())
        loads, size = list[BlockLoad](), 0
        while self._outgoing and size < _PASS_BYTES:
            loads.append(self._outgoing.popleft())
            size += sum(value.nbytes for value in loads[-1].values)
        copies, self._copies = self._copies, []
        return Transfers(loads, copies)

    def finished(self, loaded: Iterable[str], copied: Copied | None) -> None:
        """End loads of requests, and reads that every rank has copied."""
        self._loading.difference_update(loaded)
        for number, parts in copied.parts.items() if copied else ():
            reading = self._reading[number]
            reading.parts |= parts
            if len(reading.parts) == self._ranks:
                del self._reading[number]
                self._bound.free_blocks(reading.kept)
                ranks = [reading.parts[rank] for rank in range(self._ranks)]
                self._answer(KvAnswer(number, value=np.concatenate(ranks, axis=1) if self._ranks > 1 else ranks[0]))

    @property
    def _bound(self) -> BlockPool:
        if self._pool is None:
            raise InternalError("the scheduler binds its pool before the first pass")
        return self._pool

    def _take(self, question: Question) -> None:
        if isinstance(question, Find):
            self._answer(KvAnswer(question.number, held=self._held(question.hashes)))
        elif isinstance(question, Write):
            self._stage(question)
        else:
            self._read(question)

    def _held(self, hashes: Iterable[bytes]) -> int:
        return sum(1 for _ in takewhile(lambda each: each in self._staged or self._known(each) is not None, hashes))

    def _known(self, block: bytes) -> Any:
        """Return the block of vLLM with one of our hashes, or None if vLLM has dropped it."""
        if block not in self._cached:
            return None
        found = self._bound.get_cached_block(self._cached[block], [0])
        if found is None:
            del self._cached[block]
            return None
        return found[0]

    def _stage(self, write: Write) -> None:
        own, full = frozenset(write.hashes), False
        for block, value in zip(write.hashes[-len(write.values) :], write.values, strict=True):
            if self._known(block) is None and not (full := not self._has_room(value.nbytes, own)):
                self._unstaged(block)
                self._staged[block] = value
                self._staged_size += value.nbytes
            if full:
                break
        self._answer(KvAnswer(write.number, self._held(write.hashes), full))

    def _has_room(self, size: int, own: frozenset[bytes]) -> bool:
        """Whether `size` bytes fit the stage, after the oldest blocks that are not in `own` are dropped."""
        while self._staged_size + size > self._staged_bytes:
            oldest = next((block for block in self._staged if block not in own), None)
            if oldest is None:
                return False
            self._unstaged(oldest)
        return True

    def _unstaged(self, block: bytes) -> Any:
        """Remove a block from the stage; return its value, or None if it was not there."""
        value = self._staged.pop(block, None)
        self._staged_size -= 0 if value is None else value.nbytes
        return value

    def _read(self, read: Read) -> None:
        found = [self._known(block) for block in read.hashes]
        if len(self._reading) >= _MOST_READS or any(block is None for block in found):
            self._answer(KvAnswer(read.number))
            return
        self._bound.touch(found)
        self._reading[read.number] = _Reading(found)
        self._copies.append(BlockCopy(read.number, [block.block_id for block in found]))

    def _sequence(self, request: Any) -> _Sequence:
        if request.request_id not in self._sequences:
            root = blocks.root(self._fingerprint, request.cache_salt or "")
            self._sequences[request.request_id] = _Sequence(root)
        return self._sequences[request.request_id]


def block_hashes(start: bytes, tokens: Sequence[int], block_tokens: int) -> list[bytes]:
    """Return the hashes of the whole blocks of `block_tokens` tokens that follow the one with hash `start`."""
    each = block_tokens // blocks.BLOCK_TOKENS
    return blocks.chain(start, tokens[: len(tokens) // block_tokens * block_tokens])[each - 1 :: each]
