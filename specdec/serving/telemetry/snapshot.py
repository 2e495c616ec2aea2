"""Live metrics of running services, computed from their counters over a span of time."""

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
"""Series that are summed over all replicas."""
GAUGES = ("specdec_verify_plain_seconds", "specdec_drafter_rtt_seconds")
"""Series that are averaged over all replicas. A 0 means that a replica has no measurement."""
VERIFIER = "specdec_verify_plain_seconds"
"""A series that every verifier exports once."""
DRAFTER = "specdec_drafter_streams"
"""A series that every drafter exports once."""


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """Live metrics of all replicas. A metric is None without observations."""

    verifiers: int = 0
    """Number of verifiers that responded."""
    drafters: int = 0
    """Number of drafters that responded."""
    alpha: float | None = None
    """Acceptance rate α, accepted / (accepted + recovered). Drafts after a rejection are never verified."""
    gamma: float | None = None
    """Mean number of requested drafts, over rounds that wait for drafts."""
    starvation: float | None = None
    """Share of these rounds that received fewer drafts."""
    draft_step: float | None = None
    """Mean duration of a drafter step, in seconds."""
    draft_batch: float | None = None
    """Mean number of sessions in a drafter step."""
    verify_pass: float | None = None
    """Mean duration of a target pass, in seconds."""
    verify_batch: float | None = None
    """Mean number of sessions in a target pass."""
    plain_pass: float | None = None
    """Mean duration of a target pass without drafts, in seconds."""
    round_trip: float | None = None
    """Mean round-trip time from verifier to drafter, in seconds."""
    verify_busy: float | None = None
    """Share of the time that a verifier's model computes."""
    draft_busy: float | None = None
    """Share of the time that a drafter's model computes."""

    @property
    def costs(self) -> RoundCosts | None:
        """Costs of a round, or None while one is unknown. An unmeasured plain pass costs as much as a verify pass.

        Raises:
            ValueError: a metric is out of range.
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
    """Compute a snapshot from the increase of each of COUNTERS over a span of time, and the GAUGES at its end.

    `seconds` is the length of the span, or None for the whole life of each process.
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
