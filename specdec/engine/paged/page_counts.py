"""How many running and ended sequences have each page, and which pages are free."""

from collections.abc import Iterable


class PageCounts:
    """Reference counts. A page is free, live (a running sequence has it) or cached (only ended ones have it)."""

    def __init__(self, total: int) -> None:
        self._free = list(reversed(range(total)))
        self._all = [0] * total
        self._live = [0] * total
        self._cached = 0

    @property
    def free(self) -> int:
        """Number of pages that no sequence has."""
        return len(self._free)

    @property
    def cached(self) -> int:
        """Number of pages that only ended sequences have."""
        return self._cached

    def take(self) -> int:
        """Take a free page for one running sequence."""
        page = self._free.pop()
        self._all[page] = self._live[page] = 1
        return page

    def share(self, pages: Iterable[int]) -> None:
        """Give pages that other sequences have to one more running sequence."""
        for page in pages:
            self._cached -= not self._live[page]
            self._all[page] += 1
            self._live[page] += 1

    def retire(self, pages: Iterable[int]) -> None:
        """Count that a sequence with these pages has ended."""
        for page in pages:
            self._live[page] -= 1
            self._cached += not self._live[page]

    def drop(self, pages: Iterable[int]) -> None:
        """Take these pages from an ended sequence; pages that no other has become free."""
        for page in pages:
            self._all[page] -= 1
            if not self._all[page]:
                self._cached -= 1
                self._free.append(page)

    def is_shared(self, page: int) -> bool:
        """Whether more than one sequence has the page."""
        return self._all[page] > 1

    def is_shared_by_running(self, page: int) -> bool:
        """Whether more than one running sequence has the page."""
        return self._live[page] > 1

    def is_cached(self, page: int) -> bool:
        """Whether only ended sequences have the page."""
        return not self._live[page]
