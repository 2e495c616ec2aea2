"""What running services cost: sums of their counters over a span of time, and the numbers these come to."""

import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field

from specdec.errors import SpecdecError

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
"""What is summed over all replicas."""
GAUGES = ("specdec_verify_plain_seconds", "specdec_drafter_rtt_seconds")
"""What is averaged over all replicas; nothing is said by one that is 0."""
VERIFIER = "specdec_verify_plain_seconds"
"""Every verifier exports it once."""
DRAFTER = "specdec_drafter_streams"
"""Every drafter exports it once."""


class MetricsUnreadable(SpecdecError):
    """Metrics that were asked for cannot be had."""

    reason = "METRICS_UNREADABLE"


@dataclass(frozen=True, slots=True)
class Sums:
    """What was counted over a span of time."""

    counters: Mapping[str, float]
    gauges: Mapping[str, float] = field(default_factory=dict)
    verifiers: int = 0
    drafters: int = 0
    """Replicas that were heard."""
    seconds: float | None = None
    """The span; None where it is each process's whole life."""


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """The live numbers; None where nothing was counted yet."""

    verifiers: int = 0
    drafters: int = 0
    alpha: float | None = None
    """accepted / (accepted + recovered): drafts behind a rejection were never judged."""
    gamma: float | None = None
    """Drafts that a round which waits for drafts asks for."""
    starvation: float | None = None
    """Share of these rounds that got fewer."""
    draft_step: float | None = None
    draft_batch: float | None = None
    verify_pass: float | None = None
    verify_batch: float | None = None
    plain_pass: float | None = None
    round_trip: float | None = None
    verify_busy: float | None = None
    """Share of the time in which the verifiers' models compute."""
    draft_busy: float | None = None


def snapshot_of(sums: Sums) -> MetricsSnapshot:
    """The numbers that sums come to."""
    count = sums.counters
    (accepted, recovered, rounds, asked, starved, verified, passes, rows) = (count.get(it, 0.0) for it in COUNTERS[:8])
    (stepped, steps, drafting, batches) = (count.get(it, 0.0) for it in COUNTERS[8:])
    return MetricsSnapshot(
        verifiers=sums.verifiers,
        drafters=sums.drafters,
        alpha=_share(accepted, accepted + recovered),
        gamma=_share(asked, rounds),
        starvation=_share(starved, rounds),
        draft_step=_share(stepped, steps),
        draft_batch=_share(drafting, batches),
        verify_pass=_share(verified, passes),
        verify_batch=_share(rows, passes),
        plain_pass=sums.gauges.get("specdec_verify_plain_seconds"),
        round_trip=sums.gauges.get("specdec_drafter_rtt_seconds"),
        verify_busy=_share(verified, (sums.seconds or 0.0) * sums.verifiers),
        draft_busy=_share(stepped, (sums.seconds or 0.0) * sums.drafters),
    )


def fetch(url: str, timeout: float) -> bytes:
    """What a URL answers.

    Raises:
        MetricsUnreadable: nothing.
    """
    try:
        with urllib.request.urlopen(url, timeout=timeout) as answer:
            body: bytes = answer.read()
            return body
    except (OSError, ValueError) as error:
        raise MetricsUnreadable(f"{url} cannot be read: {error}") from error


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
