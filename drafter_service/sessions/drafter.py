"""What the sessions need of a source of drafts; the sources themselves are in `drafter_service.drafters`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from drafter_service.sessions.draft_session import DraftSession
from drafter_service.sessions.tree_growth import TreeFamily
from drafter_service.sessions.tree_session import TreeSession
from specdec.engine import SequenceMemory
from specdec.planning.certainty import Certainty
from specdec.rules.draft import SparseProbs
from specdec.sampling.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class DrafterInfo:
    """What verifiers are told of a drafter, and what their messages are checked against."""

    model: str
    """Name that verifiers show."""
    tokenizer_hash: str
    """Fingerprint of the drafter's tokenizer."""
    vocab_size: int
    """Valid ids are 0..vocab_size-1."""
    context_length: int
    """Most tokens of a sequence."""
    step_seconds: float
    """Seconds of one draft step for one session, measured at load."""
    kind: str = "model"
    """What drafts."""
    overlap: float = 1.0
    """Share of the smaller vocabulary that drafter and target have in common; 1 where they have one tokenizer."""
    outcomes: bool = False
    """Whether it can say what else is likely where it has drafted, so that chains can be pushed."""
    encoder_decoder: bool = False
    """Whether it is a language model whose encoder reads the prompt."""
    vocabulary: str = ""
    """Digest of the target's vocabulary that drafts are translated to; empty for the drafter's own."""


@dataclass(frozen=True, slots=True, eq=False)
class ScheduledSession:
    """A session's share of one step."""

    session: DraftSession
    count: int
    """How many of its tokens are computed in this step; the step that computes the last of them drafts one more."""


@dataclass(frozen=True, slots=True, eq=False)
class DraftedToken:
    """One token drafted for a session."""

    session: DraftSession
    token: int
    probs: SparseProbs | None
    """The distribution q̂ that the token was drawn from; None in a mode that sends none."""
    certainty: Certainty | None = None
    """How sure the model was, where the session asks for it."""
    rivals: Sequence[int] = ()
    """The other tokens that are likely in this place, the likeliest first, where the session asks for them."""


@dataclass(frozen=True, slots=True, eq=False)
class DraftedLevel:
    """One level of a session's tree."""

    session: TreeSession
    families: Sequence[TreeFamily]
    """The children of each node of the tree's frontier."""


@dataclass(frozen=True, slots=True, eq=False)
class DraftFailure:
    """A session whose next token could not be drafted; the other sessions of the step are not affected.

    Drafts that were drawn before are sent all the same, because the failure may be due to one of them.
    """

    session: DraftSession
    error: Exception


@dataclass(frozen=True, slots=True, eq=False)
class NoGuess:
    """A session that the drafter cannot continue until more of it is committed."""

    session: DraftSession


StepResult = DraftedToken | DraftedLevel | DraftFailure | NoGuess


class Drafter(Protocol):
    """A source of draft tokens; only the worker's thread uses it."""

    info: DrafterInfo
    sequences: SequenceMemory
    """The memory of the sequences that are drafted for, by `DraftSession.key`."""

    def step(self, batch: Sequence[ScheduledSession]) -> Sequence[StepResult]:
        """Compute the scheduled tokens in one pass, and draft for each session that is complete with them.

        That is one token, or one level of a tree.

        Raises:
            Exception: the pass failed as a whole; nothing was computed.
        """


@runtime_checkable
class TranslatableDrafter(Protocol):
    """A drafter that can also draft for targets with another tokenizer."""

    def translated(self, target: Vocabulary) -> Drafter:
        """A drafter of the target's tokens, which shares this one's memory; both may be used, in turn.

        Raises:
            TokenizerMismatch: it cannot be made.
        """
