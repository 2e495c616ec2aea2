"""Interface of the paged memory for keys and values, which `KvPool` uses on any device."""

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from specdec.engine.kv.layout import KvLayout
from specdec.engine.kv.sequence import SequenceKv

S = TypeVar("S", bound=SequenceKv)


class KvStore(ABC, Generic[S]):
    """Pages of running sequences, cached pages of ended sequences, and free pages."""

    def __init__(self, layout: KvLayout, page_tokens: int, budget: int) -> None:
        """`page_tokens` is a multiple of the block size; `budget` is in bytes."""
        self.layout = layout
        self.page_tokens = page_tokens
        self.page_bytes = page_tokens * layout.token_bytes
        self.total = budget // self.page_bytes
        """Number of pages in the budget."""
        self.free = self.total
        """Number of pages that no sequence uses."""
        self.cached = 0
        """Number of pages that only ended sequences use."""

    def pages(self, tokens: int) -> int:
        """Number of pages for `tokens` tokens."""
        return -(-tokens // self.page_tokens)

    @abstractmethod
    def open(self, limit: int, root: bytes) -> S:
        """Open a running sequence without tokens, which may reach `limit` tokens."""

    @abstractmethod
    def shared(self, tokens: int) -> int:
        """Number of pages that a sequence saves by sharing its first `tokens` tokens with another."""

    @abstractmethod
    def share(self, sequence: S, source: S, tokens: int) -> None:
        """Add the keys and values of the first `tokens` tokens of `source` to a sequence without tokens."""

    @abstractmethod
    def missing(self, sequence: S, length: int) -> int:
        """Number of pages that the sequence must take to write up to `length`."""

    def needed(self, sequence: S, length: int) -> int:
        """Number of missing pages if no ended sequence had any pages."""
        return self.missing(sequence, length)

    @abstractmethod
    def extend(self, sequence: S, length: int) -> None:
        """Take the missing pages, which must be free."""

    @abstractmethod
    def retire(self, sequence: S) -> None:
        """Mark a sequence as ended: its sealed blocks are cached, and it is no longer written."""

    @abstractmethod
    def pinned(self, sequence: S) -> int:
        """Number of cached pages that cannot be freed while this ended sequence is kept."""

    @abstractmethod
    def drop(self, sequence: S) -> None:
        """Remove an ended sequence and release its pages."""
