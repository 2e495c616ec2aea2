"""The memory for keys and values, in pages: what `KvPool` needs of it, whatever the device."""

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from specdec.engine.kv_layout import KvLayout
from specdec.engine.sequence_kv import SequenceKv

H = TypeVar("H", bound=SequenceKv)


class KvStore(ABC, Generic[H]):
    """Pages of running sessions, of ended ones that are kept for others, and free ones."""

    def __init__(self, layout: KvLayout, page_tokens: int, budget: int) -> None:
        """`page_tokens` are whole blocks; `budget` in bytes."""
        self.layout = layout
        self.page_tokens = page_tokens
        self.page_bytes = page_tokens * layout.token_bytes
        self.total = budget // self.page_bytes
        """Pages there are."""

    def pages(self, tokens: int) -> int:
        """Pages that hold `tokens` tokens."""
        return -(-tokens // self.page_tokens)

    @property
    @abstractmethod
    def free(self) -> int:
        """Pages that nobody has."""

    @property
    @abstractmethod
    def cached(self) -> int:
        """Pages that only ended sessions have."""

    @abstractmethod
    def open(self, limit: int, root: bytes) -> H:
        """A running session without tokens, which may reach `limit` of them."""

    @abstractmethod
    def shared(self, tokens: int) -> int:
        """Pages a session does not take because it begins with `tokens` tokens of another."""

    @abstractmethod
    def share(self, holding: H, source: H, tokens: int) -> None:
        """Let a session without tokens begin with the keys and values of the first `tokens` of another."""

    @abstractmethod
    def missing(self, holding: H, length: int) -> int:
        """Pages that the session must still take to write up to `length`."""

    def needed(self, holding: H, length: int) -> int:
        """Of those that are missing, how many still were if no ended session had any pages."""
        return self.missing(holding, length)

    @abstractmethod
    def extend(self, holding: H, length: int) -> None:
        """Take the pages that are missing; they are free."""

    @abstractmethod
    def retire(self, holding: H) -> None:
        """A session has ended: its sealed blocks are kept for others, and nothing writes to it any more."""

    @abstractmethod
    def pinned(self, holding: H) -> int:
        """Cached pages that stay as long as this ended session is kept."""

    @abstractmethod
    def drop(self, holding: H) -> None:
        """Forget an ended session."""
