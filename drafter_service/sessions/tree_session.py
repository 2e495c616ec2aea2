"""A session that gets one tree per round, for exactly the committed tokens. Nothing is drafted ahead."""

from typing_extensions import override

from drafter_service.sessions.draft_session import DraftSession
from drafter_service.sessions.tree_growth import TreeGrowth
from specdec.rules.prefix import common_length
from specdec.sampling.distribution import History
from specdec.wire.draft import DraftTokens
from specdec.wire.session import DraftEnd, Open, TreePlan


class TreeSession(DraftSession):
    """The committed tokens and the tree after them. A drafter without trees drafts a chain instead."""

    def __init__(self, key: str, opened: Open, plan: TreePlan, context_length: int) -> None:
        """Start without a tree; `plan` sets how trees are drafted."""
        super().__init__(key, opened, context_length)
        self.plan = plan
        self.growth = self._begin()
        self._tree_sent = False

    @property
    @override
    def drafted(self) -> int:
        return self.chain or len(self.growth)

    @property
    def chain(self) -> int:
        """Length of the chain drafted instead of a tree."""
        return len(self) - self.committed

    @property
    @override
    def branches(self) -> int:
        return len(self.growth)

    @property
    @override
    def verifier_waits(self) -> bool:
        return self.wants_draft(0)

    @override
    def wants_draft(self, ahead: int) -> bool:
        return not self._stopped and not self.growth.complete and self.wanted(ahead) > 0

    @override
    def wanted(self, ahead: int) -> int:
        return min(self.gamma, self.plan.depth, self.limit - self.committed) - self.chain

    @override
    def is_due(self, ahead: int) -> bool:
        return not self.wants_draft(ahead)

    def history_at(self, node: int) -> History:
        """Return the history that q depends on after a node: the committed tokens and the node's own path."""
        history = self.history
        if not self.params.needs_history:
            return history
        return History(history.prompt, [*history.output, *self.growth.path(node)])

    @override
    def take_unsent(self) -> DraftTokens | None:
        if not self.growth.tokens:
            return super().take_unsent()
        if self._tree_sent:
            return None
        self._tree_sent = True
        draft = self.growth.draft()
        return DraftTokens(self.session_id, self.epoch, self.committed, self._committed_hash.value, draft)

    @override
    def take_end(self) -> DraftEnd | None:
        return self._end(ended=self.gamma > 0 and not self.drafted and not self.wants_draft(0))

    @override
    def _advance(self, tokens: tuple[int, ...]) -> int:
        valid = self._committed + common_length(self._tokens[self._committed :], tokens)
        self._tokens[self._committed :] = tokens
        self._committed_hash = self._hash = self._committed_hash.extended(tokens)
        self._committed += len(tokens)
        self._mark_sent()
        self.chain_start = self._committed
        self.growth, self._tree_sent = self._begin(), False
        return valid

    def _begin(self) -> TreeGrowth:
        return TreeGrowth(self.plan, max(0, min(self.gamma, self.limit - len(self))))
