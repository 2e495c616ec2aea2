"""Drafts from a draft head of the target, which reads features that the verifier sends with each verdict."""

from collections.abc import Sequence
from dataclasses import replace

from typing_extensions import override

from drafter_service.drafters.fed_head import FedHead
from drafter_service.drafters.model_drafter import ModelDrafter
from drafter_service.sessions.drafter import BeamPasses, DraftFailure, NoGuess, ScheduledSession, StepResult
from drafter_service.sessions.tree_session import TreeSession
from specdec.errors import NoDistribution, TokenizerMismatch
from specdec.grammar.compiler import GrammarCompiler
from specdec.sampling.vocabulary import Vocabulary
from specdec.wire.beams import BeamAsk


class FeatureDrafter(ModelDrafter):
    """A head as a Drafter of chains. Its drafts follow from the last verdict, so none is made ahead of it."""

    def __init__(self, name: str, head: FedHead, support: int, grammars: GrammarCompiler | None) -> None:
        """Create the drafter; arguments as for `ModelDrafter`."""
        super().__init__(name, head, support, "head", grammars)
        self._head = head
        self.info = replace(self.info, outcomes=False, features=head.features)

    @override
    def step(self, batch: Sequence[ScheduledSession]) -> list[StepResult]:
        """Compute the scheduled tokens. A session without features, or without an id to draft, gets no draft."""
        able, unable = list[ScheduledSession](), list[StepResult]()
        for each in batch:
            if self._can_draft(each):
                able.append(each)
            else:
                unable.append(NoGuess(each.session, lacks_features=True))
        drafted = super().step(able) if able else []
        return [*(NoGuess(each.session) if _has_no_id(each) else each for each in drafted), *unable]

    @override
    def translated(self, target: Vocabulary) -> ModelDrafter:
        raise TokenizerMismatch(f"{self.info.model} is a draft head, which has no tokens but its target's")

    @override
    def beams(self, ask: BeamAsk, chunk_tokens: int) -> BeamPasses:
        """Propose none, since a search sends no features."""
        yield from ()
        return ()

    def _can_draft(self, scheduled: ScheduledSession) -> bool:
        session = scheduled.session
        return not isinstance(session, TreeSession) and self._head.can_draft(session.key, session.committed)


def _has_no_id(result: StepResult) -> bool:
    """Whether the sampling parameters or the grammar leave no id that the head can draft."""
    return isinstance(result, DraftFailure) and isinstance(result.error, NoDistribution)
