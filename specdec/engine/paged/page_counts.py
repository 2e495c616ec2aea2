"""Who has each page: how many running and ended sessions, and which pages nobody has."""

from collections.abc import Iterable


class PageCounts:
    """Reference counts. A page is free, live (some running session has it) or cached (only ended ones have it)."""

    def __init__(self, total: int) -> None:
        self._free = list(reversed(range(total)))
        self._all = [0] * total
        self._live = [0] * total
        self._cached = 0

    @property
    def free(self) -> int:
        """Pages that nobody has."""
        return len(self._free)

    @property
    def cached(self) -> int:
        """Pages that only ended sessions have."""
        return self._cached

    def take(self) -> int:
        """A free page, for one running session."""
        page = self._free.pop()
        self._all[page] = self._live[page] = 1
        return page

    def share(self, pages: Iterable[int]) -> None:
        """One more running session has these pages, which others have too."""
        for page in pages:
            self._cached -= not self._live[page]
            self._all[page] += 1
            self._live[page] += 1

    def retire(self, pages: Iterable[int]) -> None:
        """A session that has these pages has ended."""
        for page in pages:
            self._live[page] -= 1
            self._cached += not self._live[page]

    def drop(self, pages: Iterable[int]) -> None:
        """An ended session has these pages no more."""
        for page in pages:
            self._all[page] -= 1
            if not self._all[page]:
                self._cached -= 1
                self._free.append(page)

    def is_shared(self, page: int) -> bool:
        """Whether more than one session has the page."""
        return self._all[page] > 1

    def is_shared_by_running(self, page: int) -> bool:
        """Whether more than one running session has the page."""
        return self._live[page] > 1

    def is_cached(self, page: int) -> bool:
        """Whether only ended sessions have the page."""
        return not self._live[page]
