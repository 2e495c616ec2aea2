"""The interface between sessions and sources of drafts. `drafter_service.drafters` implements it."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from drafter_service.sessions.draft_session import DraftSession
from drafter_service.sessions.tree_growth import TreeFamily
from drafter_service.sessions.tree_session import TreeSession
from specdec.engine import SequenceMemory
from specdec.planning.certainty import Certainty
from specdec.rules.draft import SparseProbs
from specdec.sampling.vocabulary import Vocabulary
from specdec.wire.beams import BeamAsk, ProposedBeam
from specdec.wire.features import Features


@dataclass(frozen=True, slots=True)
class DrafterInfo:
    """Properties of a drafter that its handshake reports, and the limits that messages are checked against."""

    model: str
    """Model name that verifiers display."""
    tokenizer_hash: str
    """Fingerprint of the drafter's tokenizer."""
    vocab_size: int
    """Number of token ids; valid ids are 0..vocab_size-1."""
    context_length: int
    """Maximum length of a sequence, in tokens."""
    step_seconds: float
    """Duration of one draft step for one session, in seconds, measured at load."""
    kind: str = "model"
    """Kind of drafter: `model`, `hybrid`, `counts`, `random`, or the kind of a source."""
    overlap: float = 1.0
    """Share of the smaller vocabulary that drafter and target have in common; 1 if they have one tokenizer."""
    outcomes: bool = False
    """Whether the drafter reports alternatives to its drafts, so that chains can be pushed."""
    encoder_decoder: bool = False
    """Whether the drafter is a language model whose encoder reads the prompt."""
    vocabulary: str = ""
    """Digest of the target's vocabulary that drafts are translated to; empty for the drafter's own."""
    features: str = ""
    """Name of the features that the drafter reads, which no drafts can be made ahead of; empty if it reads none."""


@dataclass(frozen=True, slots=True, eq=False)
class ScheduledSession:
    """A session's share of one step."""

    session: DraftSession
    count: int
    """Number of the session's tokens to compute in this step. Computing the last of them drafts one more."""


@dataclass(frozen=True, slots=True, eq=False)
class DraftedToken:
    """One token drafted for a session."""

    session: DraftSession
    token: int
    probs: SparseProbs | None
    """Distribution q̂ that the token was drawn from; None in a mode that sends none."""
    certainty: Certainty | None = None
    """Certainty of the model, if the session asks for it."""
    alternatives: Sequence[int] = ()
    """Other likely tokens at this position, most likely first, if the session asks for them."""


@dataclass(frozen=True, slots=True, eq=False)
class DraftedRun:
    """Several tokens drafted for a session in one pass, because the model confirmed guesses of local sources."""

    session: DraftSession
    tokens: Sequence[DraftedToken]
    """Drafts in order, at least one. Each but the last equals its guess."""
    guessed: int
    """Number of guesses that the pass computed."""


@dataclass(frozen=True, slots=True, eq=False)
class DraftedLevel:
    """One level of a session's tree."""

    session: TreeSession
    families: Sequence[TreeFamily]
    """Children of each frontier node of the tree."""


@dataclass(frozen=True, slots=True, eq=False)
class DraftFailure:
    """A session whose next token could not be drafted. The other sessions of the step are not affected.

    Earlier drafts are still sent, because one of them may have caused the failure.
    """

    session: DraftSession
    error: Exception


@dataclass(frozen=True, slots=True, eq=False)
class NoGuess:
    """A session that the drafter cannot continue until more tokens are committed."""

    session: DraftSession
    lacks_features: bool = False
    """Whether the features of the last committed tokens are missing."""


StepResult = DraftedToken | DraftedRun | DraftedLevel | DraftFailure | NoGuess


class Drafter(Protocol):
    """A source of draft tokens, used only by the worker's thread."""

    info: DrafterInfo
    sequences: SequenceMemory
    """Memory of the sequences that are drafted for, keyed by `DraftSession.key`."""

    def step(self, batch: Sequence[ScheduledSession]) -> Sequence[StepResult]:
        """Compute the scheduled tokens in one pass, and draft for each session that this completes.

        It gets a token, a run of tokens or a tree level.

        Raises:
            Exception: the pass failed as a whole; nothing was computed.
        """


@runtime_checkable
class FeatureReader(Protocol):
    """The sequences of a drafter that reads features of the target."""

    def read_features(self, session: DraftSession, features: Features | None, *, opened: bool) -> None:
        """Add features of a session, up to the last but one of its committed tokens.

        Args:
            session: an admitted session, none of whose drafts are computed.
            features: features as received, which may be wrong; None if none were sent.
            opened: whether the session was just opened or reopened, so that unread features are of other tokens.
        """


BeamPasses = Generator[None, None, Sequence[ProposedBeam]]
"""Computation of proposed beams: yields after each pass but the last, and returns the beams. Closed, it frees their
memory."""


def run_beams(passes: BeamPasses) -> Sequence[ProposedBeam]:
    """Run all passes of a computation one after the other, and return its beams."""
    while True:
        try:
            next(passes)
        except StopIteration as done:
            beams: Sequence[ProposedBeam] = done.value
            return beams


@runtime_checkable
class BeamProposer(Protocol):
    """A drafter that can also propose the beams of a target's search."""

    def beams(self, ask: BeamAsk, chunk_tokens: int) -> BeamPasses:
        """Propose beams, step after step; none if there is no memory for them.

        Args:
            chunk_tokens: most tokens of the prompt to compute in one pass.
        """


@runtime_checkable
class TranslatableDrafter(Protocol):
    """A drafter that can also draft for targets with another tokenizer."""

    def translated(self, target: Vocabulary) -> Drafter:
        """Return a drafter of the target's tokens that shares this one's memory. The two must not run at the same time.

        Raises:
            TokenizerMismatch: the drafter cannot be translated to that vocabulary.
        """
