"""A share of a pass whose keys and values lie in pages, gathered for each layer: for long chunks, and the reference."""

from torch import Tensor

from specdec.engine.attention import Rule
from specdec.engine.paged.pages import PAGE_TOKENS, Pages
from specdec.engine.span import Span
from specdec.rules.tree import Tree


class PagedSpan(Span):
    """Reads the pages that its queries see, and no others."""

    def __init__(self, memory: Pages, pages: Tensor, start: int, count: int, tree: Tree | None = None) -> None:
        """`pages`: the numbers of the session's pages up to its last new token, in order."""
        super().__init__(start, count, tree)
        self._memory = memory
        self._pages = pages

    def attend(self, layer: int, query: Tensor, rule: Rule) -> Tensor:
        """Attend to the session's keys, among which the new ones lie already; shapes as in `Span.over`."""
        first = self.first_seen(rule.window)
        keys, values = (self._gather(part[layer], first) for part in (self._memory.keys, self._memory.values))
        return self.over(query, keys, values, rule)

    def _gather(self, pages: Tensor, first: int) -> Tensor:
        """The tokens from `first` on: [1, heads, tokens, width]."""
        skipped = first // PAGE_TOKENS
        tokens = pages.index_select(0, self._pages[skipped:]).flatten(0, 1)
        offset = skipped * PAGE_TOKENS
        return tokens[first - offset : self.start + self.count - offset].transpose(0, 1).unsqueeze(0)
