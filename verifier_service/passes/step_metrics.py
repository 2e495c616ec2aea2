"""What the metrics show of a step."""

from verifier_service.backends.model_step import ModelStep
from verifier_service.metrics import VerifierMetrics


def publish(step: ModelStep, sequences: int, metrics: VerifierMetrics) -> None:
    """Publish a step; `sequences` run or wait for KV."""
    memory = step.memory
    metrics.running.set(step.running)
    metrics.waiting.set(max(sequences - step.running, 0))
    metrics.preemptions.inc(step.preempted)
    metrics.prefix_queried.inc(step.queried)
    metrics.prefix_found.inc(sum(step.found.values()))
    metrics.kv_usage.set(memory.live / memory.budget)
    for state, size in (("live", memory.live), ("cached", memory.cached), ("budget", memory.budget)):
        metrics.kv_bytes.labels(state).set(size)
    if step.chunks:
        metrics.batch_rows.observe(len(step.chunks))
        metrics.pass_seconds.observe(step.seconds)
