"""The live numbers of running services, computed from sums of their counters over a span of time."""

from collections.abc import Mapping
from dataclasses import dataclass

from specdec.planning.sizing import RoundCosts

COUNTERS = (
    "specdec_spec_accepted_tokens_total",
    'specdec_spec_tokens_by_origin_total{origin="recovered"}',
    "specdec_spec_asked_rounds_total",
    "specdec_spec_asked_tokens_total",
    "specdec_spec_starved_rounds_total",
    "specdec_verify_pass_seconds_sum",
    "specdec_verify_pass_seconds_count",
    "specdec_batch_rows_sum",
    "specdec_drafter_step_seconds_sum",
    "specdec_drafter_step_seconds_count",
    "specdec_drafter_batch_size_sum",
    "specdec_drafter_batch_size_count",
)
"""The series that are summed over all replicas."""
GAUGES = ("specdec_verify_plain_seconds", "specdec_drafter_rtt_seconds")
"""The series that are averaged over all replicas; a 0 means that a replica has measured nothing."""
VERIFIER = "specdec_verify_plain_seconds"
"""A series that every verifier exports once."""
DRAFTER = "specdec_drafter_streams"
"""A series that every drafter exports once."""


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """The live numbers of all replicas; a number is None while nothing was counted for it."""

    verifiers: int = 0
    """Verifiers that answered."""
    drafters: int = 0
    """Drafters that answered."""
    alpha: float | None = None
    """Acceptance rate, accepted / (accepted + recovered): drafts behind a rejection were never verified."""
    gamma: float | None = None
    """Drafts that a round asks for, on average over rounds that wait for drafts."""
    starvation: float | None = None
    """Share of these rounds that got fewer drafts."""
    draft_step: float | None = None
    """Seconds of one drafter step."""
    draft_batch: float | None = None
    """Sessions in one drafter step."""
    verify_pass: float | None = None
    """Seconds of one target pass."""
    verify_batch: float | None = None
    """Sessions in one target pass."""
    plain_pass: float | None = None
    """Seconds of one target pass without drafts."""
    round_trip: float | None = None
    """Seconds of a round trip from verifier to drafter."""
    verify_busy: float | None = None
    """Share of the time in which a verifier's model computes."""
    draft_busy: float | None = None
    """Share of the time in which a drafter's model computes."""

    @property
    def costs(self) -> RoundCosts | None:
        """The costs of a round, None while one is unknown; a plain pass costs a verify pass where it is not known.

        Raises:
            ValueError: a number is out of range.
        """
        wanted = (self.alpha, self.gamma, self.draft_step, self.verify_pass, self.draft_batch, self.verify_batch)
        known = [value for value in wanted if value is not None]
        if len(known) < len(wanted):
            return None
        alpha, gamma, step, verify, drafting, verifying = known
        plain = verify if self.plain_pass is None else self.plain_pass
        return RoundCosts(alpha, round(gamma), step, verify, plain, drafting, verifying, self.round_trip or 0.0)


def snapshot_of(
    counters: Mapping[str, float], gauges: Mapping[str, float], verifiers: int, drafters: int, seconds: float | None
) -> MetricsSnapshot:
    """The numbers that follow from the increase of each of COUNTERS over a span of time, and the GAUGES at its end.

    The span is None when it is the whole life of each process.
    """
    (accepted, recovered, rounds, asked, starved, verified, passes, rows) = (
        counters.get(it, 0.0) for it in COUNTERS[:8]
    )
    (stepped, steps, drafting, batches) = (counters.get(it, 0.0) for it in COUNTERS[8:])
    return MetricsSnapshot(
        verifiers=verifiers,
        drafters=drafters,
        alpha=_share(accepted, accepted + recovered),
        gamma=_share(asked, rounds),
        starvation=_share(starved, rounds),
        draft_step=_share(stepped, steps),
        draft_batch=_share(drafting, batches),
        verify_pass=_share(verified, passes),
        verify_batch=_share(rows, passes),
        plain_pass=gauges.get("specdec_verify_plain_seconds"),
        round_trip=gauges.get("specdec_drafter_rtt_seconds"),
        verify_busy=_share(verified, (seconds or 0.0) * verifiers),
        draft_busy=_share(stepped, (seconds or 0.0) * drafters),
    )


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
