"""Hop 2, verifier to drafter: the verifier's messages about a session, and the drafter's replies other than drafts.

Each value is defined here once, with its protobuf translation. Both services use these values. Draft tokens are in
`draft`.
"""

from dataclasses import dataclass
from enum import StrEnum

from specdec.planning.gamma_policy import AUTO, GammaPolicy
from specdec.protos.drafter.v1 import drafter_pb2 as pb
from specdec.rules.speculation import Mode
from specdec.sampling.params import SamplingParams
from specdec.sampling.vocabulary import Vocabulary
from specdec.wire.codec import Codec, EnumCodec, Pair, optional
from specdec.wire.features import FEATURES, Features
from specdec.wire.params import GAMMA_POLICY, MODE, SAMPLING
from specdec.wire.tokens import TOKENS


@dataclass(frozen=True, slots=True)
class SessionMessage:
    """Fields common to all messages about a session between verifier and drafter."""

    session_id: str
    epoch: int
    """Fencing number of the session's owner. A refusal repeats that of the refused message."""


@dataclass(frozen=True, slots=True)
class TreePlan:
    """Drafting of a session's trees: one tree per round, with as many nodes as the round requests."""

    width: int
    """Maximum number of children of a node."""
    depth: int
    """Maximum number of nodes on a path."""
    replacement: bool = False
    """Whether siblings are drawn with replacement, in a mode that draws them."""
    first_place: int = 0
    """Index of the first random number for siblings. Drafters of one session must not share any."""


@dataclass(frozen=True, slots=True)
class Open(SessionMessage):
    """Opens or reopens a session with a known prefix, and requests its first draft."""

    tokens: tuple[int, ...]
    """Prompt and committed output."""
    prompt_len: int
    """Number of prompt tokens among `tokens`."""
    params: SamplingParams
    mode: Mode
    gamma: int
    """Number of draft tokens requested after `tokens`."""
    max_len: int
    """Maximum length of the sequence, in tokens."""
    cache_salt: str = ""
    """Cache salt: only sessions with the same salt share computed prefixes."""
    traceparent: str = ""
    """Span of the verifier's call as a W3C `traceparent`; empty if it is not traced."""
    policy: GammaPolicy = AUTO
    """Policy that may end drafts before `gamma`."""
    tree: TreePlan | None = None
    """Requests trees, whose nodes γ counts; None requests chains."""
    outcomes: int = 0
    """Maximum number of outcomes of the pending verdict to push chains for before they are requested."""
    uniform: bool = False
    """Whether the verifier reads uniform distributions that are sent as the number of their ids."""
    request_id: str = ""
    """Id of the caller's request, for the drafter's log; empty if unknown."""
    features: Features | None = None
    """Features up to the last token but one; None if there are none, or the drafter reads none."""


@dataclass(frozen=True, slots=True)
class Commit(SessionMessage):
    """Tokens that the target committed, with a request for the next draft."""

    base_len: int
    """Committed length before `tokens`, in tokens."""
    tokens: tuple[int, ...]
    gamma: int
    """Number of draft tokens requested after `tokens`."""
    features: Features | None = None
    """Features that were not sent yet, up to the last new token but one; None if there are none."""


@dataclass(frozen=True, slots=True)
class Close(SessionMessage):
    """Closes a session."""


@dataclass(frozen=True, slots=True)
class DraftEnd(SessionMessage):
    """Reports that no more drafts follow for a session's current prefix."""

    base_len: int
    """Length of that prefix in tokens, committed and drafted together."""
    prefix_hash: int
    """Hash of the prefix; 0 from a drafter of the previous release."""


class NackReason(StrEnum):
    """Reason that a drafter refuses a session."""

    UNKNOWN = "unknown"
    """The session was never opened at this drafter, or has been removed."""
    STALE = "stale"
    """The message has an older epoch, or does not continue the committed tokens."""
    OVERLOADED = "overloaded"
    """The drafter has no memory or no slot for the session."""
    MALFORMED = "malformed"
    """One of the two sides sent an invalid message."""
    INTERNAL = "internal"
    """Drafting failed, and the drafter has removed the session."""


@dataclass(frozen=True, slots=True)
class Nack(SessionMessage):
    """Refuses to serve a session."""

    reason: NackReason
    detail: str
    """Explanation for the log."""


@dataclass(frozen=True, slots=True)
class Load:
    """Load of a drafter."""

    sessions: int
    """Number of open sessions."""
    step_seconds: float
    """Expected seconds of a step that drafts one token for each session of a recent batch and reads none."""


_REASON = EnumCodec[NackReason](NackReason, pb.Nack.Reason.DESCRIPTOR, unknown=NackReason.MALFORMED)

_PLAN = optional(Codec(TreePlan, pb.TreePlan))
OPEN = Codec(
    Open,
    pb.Open,
    {"params": "sampling"},
    tokens=TOKENS,
    params=SAMPLING,
    mode=MODE,
    policy=GAMMA_POLICY,
    tree=_PLAN,
    features=FEATURES,
)
COMMIT = Codec(Commit, pb.Commit, tokens=TOKENS, features=FEATURES)
CLOSE = Codec(Close, pb.Close)
END = Codec(DraftEnd, pb.DraftEnd)
NACK = Codec(Nack, pb.Nack, reason=_REASON)
LOAD = Codec(Load, pb.Load)
VOCABULARY = Codec(
    Vocabulary, pb.Vocabulary, {"special": "special_ids"}, tokens=Pair(list, tuple), special=Pair(sorted, frozenset)
)
