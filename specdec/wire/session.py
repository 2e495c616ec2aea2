"""Hop 2, verifier to drafter: what a verifier says of a session, and what the drafter answers beside its drafts.

Each value stands here once, with its way to protobuf and back; both services work with these values. Draft tokens are
in `draft`.
"""

from dataclasses import dataclass
from enum import StrEnum

from protos.drafter.v1 import drafter_pb2 as pb
from specdec.planning.gamma_policy import AUTO, GammaPolicy
from specdec.rules.speculation import Mode
from specdec.sampling.params import SamplingParams
from specdec.sampling.vocabulary import Vocabulary
from specdec.wire.codec import Codec, EnumCodec, Pair, optional
from specdec.wire.params import GAMMA_POLICY, MODE, SAMPLING
from specdec.wire.tokens import TOKENS


@dataclass(frozen=True, slots=True)
class SessionMessage:
    """What every message between verifier and drafter says of its session."""

    session_id: str
    epoch: int
    """Fencing number of the session's owner; a refusal has that of the refused message."""


@dataclass(frozen=True, slots=True)
class TreePlan:
    """How a session's trees are drafted: one a round, with as many nodes as the round asks for."""

    width: int
    """Most children of a node."""
    depth: int
    """Most nodes on a path."""
    replacement: bool = False
    """Whether siblings are drawn independently, in a mode that draws them."""
    first_place: int = 0
    """Index of the first number that siblings are drawn by: drafters of one session must not share any."""


@dataclass(frozen=True, slots=True)
class Open(SessionMessage):
    """Begins a session, or begins it again, from a known prefix, and asks for its first draft."""

    tokens: tuple[int, ...]
    """The prompt, then the output that is committed already."""
    prompt_len: int
    """How many of `tokens` are the prompt."""
    params: SamplingParams
    mode: Mode
    gamma: int
    """How many draft tokens are wanted behind `tokens`."""
    max_len: int
    """Length the sequence may reach, in tokens."""
    cache_salt: str = ""
    """Only sessions of one salt share computed prefixes."""
    traceparent: str = ""
    """The span of the verifier's call, in the form of W3C Trace Context; empty where it is not traced."""
    policy: GammaPolicy = AUTO
    """Where drafts end before `gamma`."""
    tree: TreePlan | None = None
    """Asks for trees, of which γ counts the nodes; None asks for chains."""
    outcomes: int = 0
    """Most outcomes of the verdict under way that chains are to be pushed for, unasked."""


@dataclass(frozen=True, slots=True)
class Commit(SessionMessage):
    """The tokens that the target committed, which asks for the next draft."""

    base_len: int
    """Committed length before `tokens`."""
    tokens: tuple[int, ...]
    gamma: int
    """How many draft tokens are wanted behind `tokens`."""


@dataclass(frozen=True, slots=True)
class Close(SessionMessage):
    """Ends a session."""


@dataclass(frozen=True, slots=True)
class DraftEnd(SessionMessage):
    """Says that no more drafts come for a session's current prefix."""

    base_len: int
    """Length of that prefix, committed and drafted tokens together."""


class NackReason(StrEnum):
    """Why a drafter does not serve a session."""

    UNKNOWN = "unknown"
    """The session was never opened at the drafter, or the drafter has forgotten it."""
    STALE = "stale"
    """The message is of an older epoch, or does not continue the committed tokens."""
    OVERLOADED = "overloaded"
    """The drafter has no memory for the session, or no place for one more."""
    MALFORMED = "malformed"
    """One of the two sides sent a message that makes no sense."""
    INTERNAL = "internal"
    """Drafting failed, and the drafter has forgotten the session."""


@dataclass(frozen=True, slots=True)
class Nack(SessionMessage):
    """Refuses to serve a session."""

    reason: NackReason
    detail: str
    """A sentence for the log."""


@dataclass(frozen=True, slots=True)
class Load:
    """How busy a drafter is."""

    sessions: int
    """Open sessions."""
    step_seconds: float
    """Expected seconds of a step that drafts one token for each session of a batch of recent size and reads none."""


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
)
COMMIT = Codec(Commit, pb.Commit, tokens=TOKENS)
CLOSE = Codec(Close, pb.Close)
END = Codec(DraftEnd, pb.DraftEnd)
NACK = Codec(Nack, pb.Nack, reason=_REASON)
LOAD = Codec(Load, pb.Load)
VOCABULARY = Codec(
    Vocabulary, pb.Vocabulary, {"special": "special_ids"}, tokens=Pair(list, tuple), special=Pair(sorted, frozenset)
)
