"""Report of a round, for callers that ask for detail: the draft, its verification data and the time."""

from dataclasses import dataclass

from specdec.protos.gateway.v1 import gateway_pb2 as pb
from specdec.rules.speculation import Origin
from specdec.wire.codec import Codec, each
from specdec.wire.params import ORIGIN


@dataclass(frozen=True, slots=True)
class ReportedToken:
    """An output token and its origin."""

    id: int
    text: str
    origin: Origin


@dataclass(frozen=True, slots=True)
class ReportedDraft:
    """A draft token. A number is None if the mode lacks it or it is not stored."""

    id: int
    text: str
    """Text of the token, decoded on its own."""
    accepted: bool
    """Whether the token is part of the output."""
    source: str
    """Kind of the drafter or source, or `grammar` for a token that the grammar forced."""
    p: float | None = None
    """Probability of the token under the target."""
    q: float | None = None
    """Probability of the token under the distribution that it was drawn from."""
    u: float | None = None
    """Uniform random number of the token's position."""
    threshold: float | None = None
    """Bound that u must be below: min(1, p/(lenience·q)) in mode rejection, the block rule's height in mode block."""
    h_norm: float | None = None
    """For `egag`: normalized entropy of the distribution that the token was drawn from, in [0, 1]."""
    gamma: int | None = None
    """For `egag`: γ after this draft step. The draft ends at this length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundReport:
    """Report of one round. A round read from the session store has no numbers, times or reasons."""

    base_len: int
    """Number of prompt and output tokens before the round."""
    tokens: tuple[ReportedToken, ...]
    """Output tokens whose text is final after this round. A token that may begin a stop string is in a later round."""
    drafted: tuple[ReportedDraft, ...]
    accepted: int
    """Number of draft tokens in the output."""
    drafter: str
    """Kind of the drafter; empty in a round without a draft."""
    fallback: str
    """Reason that a round without a draft had none although the request allows drafts; else empty."""
    gamma: int = 0
    """Number of drafts that the round requested."""
    gamma_reason: str = ""
    """Reason for γ: `fixed`, `optimal`, `egag`, `goodput`, `trial`, `room` or `source`."""
    alpha: float = 0.0
    """Estimated probability, before the round, that its next draft is accepted."""
    survival: float = 0.0
    """For `goodput`: minimum survival probability of a draft worth its time."""
    predicted_speedup: float = 0.0
    """Expected speed-up: tokens per second of the verifier's batch with drafts over those without; 0 while unknown."""
    measured_speedup: float = 0.0
    """Measured speed-up of the batch; 0 before the first measurement."""
    draft_seconds: float = 0.0
    """Waiting time for the draft, in seconds, without the network time."""
    network_seconds: float = 0.0
    """Network time to the drafter and back, in seconds, as far as the round waited for it."""
    queue_seconds: float = 0.0
    """Waiting time for a slot in a batch, in seconds."""
    pass_seconds: float = 0.0
    """Time of the target pass and verdict of the batch, in seconds."""


_REPORT = Codec(
    RoundReport,
    pb.RoundReport,
    tokens=each(Codec(ReportedToken, pb.ReportedToken, origin=ORIGIN)),
    drafted=each(Codec(ReportedDraft, pb.ReportedDraft)),
)

report_to_pb, report_from_pb = _REPORT.to_pb, _REPORT.from_pb
