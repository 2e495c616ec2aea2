"""One session's pages, in the order of its tokens."""

from array import array
from collections.abc import Sequence

from torch import Tensor

from specdec.engine.paged.pages import PAGE_TOKENS, Pages
from specdec.engine.sequence_kv import SequenceKv


class PageList(SequenceKv):
    """A page that other sessions have too is never written to: see `PageStore.extend`."""

    __slots__ = ("_memory", "pages")

    def __init__(self, memory: Pages, limit: int, root: bytes = b"") -> None:
        super().__init__(limit, root)
        self._memory = memory
        self.pages = array("q")
        """Their numbers; those behind the last token's are reserved."""

    def slots(self, start: int, stop: int) -> list[int]:
        """Where the tokens start..stop-1 lie, see `Pages`."""
        return [self.slot(position) for position in range(start, stop)]

    def slot(self, position: int) -> int:
        """Where the token at that position lies."""
        return self.pages[position // PAGE_TOKENS] * PAGE_TOKENS + position % PAGE_TOKENS

    def read(self, start: int, stop: int) -> Tensor:
        """See `Holding.read`."""
        return self._memory.read(self.slots(start, stop))

    def _write(self, start: int, kv: Tensor) -> None:
        self._memory.write(self.slots(start, start + kv.shape[2]), kv)

    def _move(self, sources: Sequence[int], start: int) -> None:
        self._memory.move([self.slot(source) for source in sources], self.slots(start, start + len(sources)))
