"""The report of a round, for callers that ask for detail: what was drafted, on what the verdict rests, and the time."""

from dataclasses import dataclass

from protos.gateway.v1 import gateway_pb2 as pb
from specdec.rules.speculation import Origin
from specdec.wire.codec import Codec, each
from specdec.wire.params import ORIGIN


@dataclass(frozen=True, slots=True)
class ReportedToken:
    """A token of the output, and where it came from."""

    id: int
    text: str
    origin: Origin


@dataclass(frozen=True, slots=True)
class ReportedDraft:
    """A token of the draft; a number that the mode does not have, or that is not kept, is None."""

    id: int
    text: str
    """The token's text, decoded on its own."""
    accepted: bool
    """Whether it is part of the output."""
    source: str
    """What guessed it: the kind of a drafter or source, or `grammar` for a token that the grammar forced."""
    p: float | None = None
    """Its probability under the target."""
    q: float | None = None
    """Its probability under the distribution that it was drawn from."""
    u: float | None = None
    """The uniform number of its position."""
    threshold: float | None = None
    """What u must be below: min(1, p/(lenience·q)) in mode rejection, the height of the block rule in mode block."""
    h_norm: float | None = None
    """With `egag`: normalized entropy of the distribution that it was drawn from, in [0, 1]."""
    gamma: int | None = None
    """With `egag`: γ after this draft step; the draft ends once it has so many tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundReport:
    """What is known of one round. One that is read back from the session store has no numbers, times and reasons."""

    base_len: int
    """Tokens of prompt and output before the round."""
    tokens: tuple[ReportedToken, ...]
    """The output tokens whose text is final with this round; a token that may begin a stop string comes with a later
    round."""
    drafted: tuple[ReportedDraft, ...]
    accepted: int
    """How many of the draft are part of the output."""
    drafter: str
    """Kind of what drafted; empty in a round without a draft."""
    fallback: str
    """Why a round that may speculate had no draft; else empty."""
    gamma: int = 0
    """Drafts that the round asked for."""
    gamma_reason: str = ""
    """Why: `fixed`, `optimal`, `egag`, `goodput`, `trial`, `room` or `source`."""
    alpha: float = 0.0
    """The chance, as estimated before the round, that its next draft is accepted."""
    survival: float = 0.0
    """With `goodput`: drafts that survive less likely than this were not worth their time."""
    predicted_speedup: float = 0.0
    """Tokens a second of the verifier's batch with drafts over those without, as expected; 0 while unknown."""
    measured_speedup: float = 0.0
    """The same as measured; 0 before the first measurement."""
    draft_seconds: float = 0.0
    """Waiting for the draft, without the way to the drafter and back."""
    network_seconds: float = 0.0
    """The way to the drafter and back, as far as the round waited for it."""
    queue_seconds: float = 0.0
    """Waiting for a place in a batch."""
    pass_seconds: float = 0.0
    """Target pass and verdict of the batch."""


_REPORT = Codec(
    RoundReport,
    pb.RoundReport,
    tokens=each(Codec(ReportedToken, pb.ReportedToken, origin=ORIGIN)),
    drafted=each(Codec(ReportedDraft, pb.ReportedDraft)),
)

report_to_pb, report_from_pb = _REPORT.to_pb, _REPORT.from_pb
