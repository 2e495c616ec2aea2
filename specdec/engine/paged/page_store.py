"""Pages that sequences share: a common beginning is stored once, and a shared page is copied before it is written."""

from collections.abc import Callable

from specdec.engine.kv_layout import KvLayout
from specdec.engine.kv_store import KvStore
from specdec.engine.paged.page_counts import PageCounts
from specdec.engine.paged.pages import PAGE_TOKENS, PageList, Pages


class PageStore(KvStore[PageList]):
    """The store of pages; its whole budget is allocated at once."""

    def __init__(self, layout: KvLayout, budget: int) -> None:
        super().__init__(layout, PAGE_TOKENS, budget)
        self.memory = Pages(layout, self.total)
        self._counts = PageCounts(self.total)

    @property
    def free(self) -> int:
        """Number of pages that no sequence has."""
        return self._counts.free

    @property
    def cached(self) -> int:
        """Number of pages that only ended sequences have."""
        return self._counts.cached

    def open(self, limit: int, root: bytes) -> PageList:
        """A sequence without tokens and pages."""
        return PageList(self.memory, limit, root)

    def shared(self, tokens: int) -> int:
        """All pages of those tokens."""
        return self.pages(tokens)

    def share(self, sequence: PageList, source: PageList, tokens: int) -> None:
        """Give the sequence the pages of the first `tokens` tokens of another, without a copy."""
        sequence.pages = source.pages[: self.pages(tokens)]
        self._counts.share(sequence.pages)

    def missing(self, sequence: PageList, length: int) -> int:
        """Number of pages still to be taken up to `length`; a shared page that will be written to counts too."""
        return self._unmapped(sequence, length) + len(self._to_write(sequence, length, self._counts.is_shared))

    def needed(self, sequence: PageList, length: int) -> int:
        """Number of missing pages when pages shared only with ended sequences are not counted."""
        return self._unmapped(sequence, length) + len(
            self._to_write(sequence, length, self._counts.is_shared_by_running)
        )

    def extend(self, sequence: PageList, length: int) -> None:
        """Take the missing pages, and copy shared ones that will be written to."""
        for index in self._to_write(sequence, length, self._counts.is_shared):
            page, own = sequence.pages[index], self._counts.take()
            if index * PAGE_TOKENS < sequence.length:
                self.memory.copy(page, own)
            sequence.pages[index] = own
            self._counts.retire([page])
            self._counts.drop([page])
        while len(sequence.pages) < self.pages(length):
            sequence.pages.append(self._counts.take())

    def retire(self, sequence: PageList) -> None:
        """Keep the pages of sealed blocks as cached and free the others, which no sequence can share."""
        self._counts.retire(sequence.pages)
        self._counts.drop(sequence.pages[len(sequence.sealed) :])
        del sequence.pages[len(sequence.sealed) :]

    def pinned(self, sequence: PageList) -> int:
        """Number of the sequence's pages that only ended sequences have."""
        return sum(map(self._counts.is_cached, sequence.pages))

    def drop(self, sequence: PageList) -> None:
        """Take all pages from an ended sequence."""
        self._counts.drop(sequence.pages)
        del sequence.pages[:]

    def _unmapped(self, sequence: PageList, length: int) -> int:
        """Number of pages up to `length` that the sequence does not have."""
        return max(0, self.pages(length) - len(sequence.pages))

    def _to_write(self, sequence: PageList, length: int, is_kind: Callable[[int], bool]) -> list[int]:
        """Indices of the pages, of a kind, that the sequence will write to on its way from its length to `length`."""
        if length <= sequence.length:
            return []
        first, last = sequence.length // PAGE_TOKENS, min(self.pages(length), len(sequence.pages))
        return [index for index in range(first, last) if is_kind(sequence.pages[index])]
