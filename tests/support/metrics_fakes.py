"""Live metrics of a balanced deployment, for tests of the ratio controller."""

from specdec.serving.telemetry.snapshot import MetricsSnapshot

SNAPSHOT = MetricsSnapshot(
    verifiers=4,
    drafters=2,
    alpha=0.7,
    gamma=4.0,
    starvation=0.0,
    draft_step=0.003,
    draft_batch=32.0,
    verify_pass=0.025,
    verify_batch=32.0,
    plain_pass=0.022,
    round_trip=0.002,
    verify_busy=0.8,
    draft_busy=0.8,
)
