"""Pages that sessions share: a common beginning is stored once, and copied where one of them writes to it."""

from collections.abc import Callable

from specdec.engine.kv_layout import KvLayout
from specdec.engine.kv_store import KvStore
from specdec.engine.paged.page_counts import PageCounts
from specdec.engine.paged.page_list import PageList
from specdec.engine.paged.pages import PAGE_TOKENS, Pages


class PageStore(KvStore[PageList]):
    """The whole budget, allocated at once."""

    def __init__(self, layout: KvLayout, budget: int) -> None:
        super().__init__(layout, PAGE_TOKENS, budget)
        self.memory = Pages(layout, self.total)
        self._counts = PageCounts(self.total)

    @property
    def free(self) -> int:
        """See `KvStore.free`."""
        return self._counts.free

    @property
    def cached(self) -> int:
        """See `KvStore.cached`."""
        return self._counts.cached

    def open(self, limit: int, root: bytes) -> PageList:
        """See `KvStore.open`."""
        return PageList(self.memory, limit, root)

    def shared(self, tokens: int) -> int:
        """All of them: see `KvStore.shared`."""
        return self.pages(tokens)

    def share(self, holding: PageList, source: PageList, tokens: int) -> None:
        """See `KvStore.share`."""
        holding.pages = source.pages[: self.pages(tokens)]
        self._counts.share(holding.pages)

    def missing(self, holding: PageList, length: int) -> int:
        """See `KvStore.missing`; a page that is to be written and is shared is missing too."""
        return self._unmapped(holding, length) + len(self._to_write(holding, length, self._counts.is_shared))

    def needed(self, holding: PageList, length: int) -> int:
        """See `KvStore.needed`."""
        return self._unmapped(holding, length) + len(self._to_write(holding, length, self._counts.is_shared_by_running))

    def extend(self, holding: PageList, length: int) -> None:
        """See `KvStore.extend`."""
        for index in self._to_write(holding, length, self._counts.is_shared):
            page, own = holding.pages[index], self._counts.take()
            if index * PAGE_TOKENS < holding.length:
                self.memory.copy(page, own)
            holding.pages[index] = own
            self._counts.retire([page])
            self._counts.drop([page])
        while len(holding.pages) < self.pages(length):
            holding.pages.append(self._counts.take())

    def retire(self, holding: PageList) -> None:
        """See `KvStore.retire`; pages that are no sealed block serve nobody."""
        self._counts.retire(holding.pages)
        self._counts.drop(holding.pages[len(holding.sealed) :])
        del holding.pages[len(holding.sealed) :]

    def pinned(self, holding: PageList) -> int:
        """See `KvStore.pinned`."""
        return sum(map(self._counts.is_cached, holding.pages))

    def drop(self, holding: PageList) -> None:
        """See `KvStore.drop`."""
        self._counts.drop(holding.pages)
        del holding.pages[:]

    def _unmapped(self, holding: PageList, length: int) -> int:
        """Pages up to `length` that it has not."""
        return max(0, self.pages(length) - len(holding.pages))

    def _to_write(self, holding: PageList, length: int, of: Callable[[int], bool]) -> list[int]:
        """Which of its pages, of that kind, the session will write to on its way from its length to `length`."""
        if length <= holding.length:
            return []
        first, last = holding.length // PAGE_TOKENS, min(self.pages(length), len(holding.pages))
        return [index for index in range(first, last) if of(holding.pages[index])]
