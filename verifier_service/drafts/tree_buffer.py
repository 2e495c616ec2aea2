"""The tree drafted for the committed tokens; one for any other prefix is not taken."""

from collections.abc import Sequence

from specdec.rules.draft import NO_DRAFT, Draft
from specdec.rules.prefix import PrefixHash
from specdec.trees.joining import as_tree, side_by_side
from specdec.trees.tree import TreeDraft
from specdec.wire.draft import DraftTokens


class TreeBuffer:
    """One session's committed tokens, and at most one tree behind them."""

    def __init__(self, committed: Sequence[int], limit: int) -> None:
        """Begin without a tree; `limit` is the largest number of nodes held."""
        self._tokens = list(committed)
        self._hash = PrefixHash(committed)
        self._limit = limit
        self._draft: TreeDraft | None = None

    def __len__(self) -> int:
        """Number of drafted tokens."""
        return 0 if self._draft is None else len(self._draft.tokens)

    @property
    def committed(self) -> tuple[int, ...]:
        """Every committed token."""
        return tuple(self._tokens)

    @property
    def committed_len(self) -> int:
        """Number of committed tokens."""
        return len(self._tokens)

    @property
    def end(self) -> int:
        """Length of the prefix that a tree continues."""
        return len(self._tokens)

    def holds(self, gamma: int) -> bool:
        """Whether the draft has come: a tree comes whole, and may have fewer nodes than were wanted."""
        return self._draft is not None or not gamma

    def add(self, chunk: DraftTokens) -> bool:
        """Take the tree of the committed tokens, or the chain of a drafter that makes no trees.

        Returns:
            Whether it was taken.
        """
        if self._draft is not None or chunk.base_len != len(self._tokens) or chunk.prefix_hash != self._hash.value:
            return False
        self._draft = side_by_side([as_tree(chunk.draft)]).cut(self._limit)
        return True

    def take(self, gamma: int) -> Draft | TreeDraft:
        """The first `gamma` nodes of the tree; it stays until `advance`."""
        return NO_DRAFT if self._draft is None else self._draft.cut(gamma)

    def advance(self, tokens: Sequence[int], judged: int) -> bool:
        """Commit the tokens of the verdict on the tree, which is dropped: the next one is drafted behind them."""
        self._tokens += tokens
        self._hash = self._hash.extended(tokens)
        self._draft = None
        return True

    def clear(self) -> None:
        """Drop the tree."""
        self._draft = None
