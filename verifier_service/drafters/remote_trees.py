"""One session's trees, from the drafter that serves it now."""

from typing_extensions import override

from specdec.wire.generation import GenerationCall
from specdec.wire.session import TreePlan
from verifier_service.config import DraftingSettings
from verifier_service.drafters.pool import DrafterPool
from verifier_service.drafters.session_drafts import MOST_DRAFTS, RemoteDrafts
from verifier_service.drafters.tree_buffer import TreeBuffer


class RemoteTrees(RemoteDrafts):
    """As RemoteDrafts, with one tree a round; nothing is drafted ahead of a verdict."""

    def __init__(
        self, call: GenerationCall, max_len: int, pool: DrafterPool, settings: DraftingSettings, plan: TreePlan
    ) -> None:
        """Make a source that is not open at any drafter yet; `plan` says how trees are made."""
        super().__init__(call, max_len, pool, settings)
        self._plan = plan
        self._buffer = TreeBuffer(call.tokens, MOST_DRAFTS)

    @override
    def source(self) -> str | None:
        name = super().source()
        return None if name is None else f"{name}, trees"
