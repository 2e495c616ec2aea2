"""The memory for keys and values in pages: what `KvPool` needs of it on any device."""

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from specdec.engine.kv.layout import KvLayout
from specdec.engine.kv.sequence import SequenceKv

S = TypeVar("S", bound=SequenceKv)


class KvStore(ABC, Generic[S]):
    """Pages of running sequences, of ended ones that are cached for others, and free ones."""

    def __init__(self, layout: KvLayout, page_tokens: int, budget: int) -> None:
        """`page_tokens` is a multiple of the block size; `budget` is in bytes."""
        self.layout = layout
        self.page_tokens = page_tokens
        self.page_bytes = page_tokens * layout.token_bytes
        self.total = budget // self.page_bytes
        """Number of pages in the budget."""
        self.free = self.total
        """Number of pages that no sequence has."""
        self.cached = 0
        """Number of pages that only ended sequences have."""

    def pages(self, tokens: int) -> int:
        """Number of pages that `tokens` tokens take."""
        return -(-tokens // self.page_tokens)

    @abstractmethod
    def open(self, limit: int, root: bytes) -> S:
        """A running sequence without tokens, which may reach `limit` of them."""

    @abstractmethod
    def shared(self, tokens: int) -> int:
        """Number of pages that a sequence does not take because it begins with `tokens` tokens of another."""

    @abstractmethod
    def share(self, sequence: S, source: S, tokens: int) -> None:
        """Give a sequence without tokens the keys and values of the first `tokens` tokens of another."""

    @abstractmethod
    def missing(self, sequence: S, length: int) -> int:
        """Number of pages that the sequence must still take to write up to `length`."""

    def needed(self, sequence: S, length: int) -> int:
        """Number of missing pages that would still be missing if no ended sequence had any pages."""
        return self.missing(sequence, length)

    @abstractmethod
    def extend(self, sequence: S, length: int) -> None:
        """Take the missing pages, which must be free."""

    @abstractmethod
    def retire(self, sequence: S) -> None:
        """Mark a sequence as ended: its sealed blocks are cached, and nothing writes to it any more."""

    @abstractmethod
    def pinned(self, sequence: S) -> int:
        """Number of cached pages that stay as long as this ended sequence is kept."""

    @abstractmethod
    def drop(self, sequence: S) -> None:
        """Give up an ended sequence and its pages."""
