"""What the span of a round says of it."""

from specdec.serving.tracing import Attributes
from specdec.wire.generation import Round


def described(done: Round) -> Attributes:
    """The attributes of a round's span; times in seconds."""
    return {
        "specdec.base_len": done.base_len,
        "specdec.tokens": len(done.tokens),
        "specdec.drafted": len(done.draft),
        "specdec.accepted": done.accepted,
        "specdec.drafter": done.drafter,
        "specdec.fallback": done.fallback,
        "specdec.draft_seconds": done.timing.draft,
        "specdec.queue_seconds": done.timing.queue,
        "specdec.verify_seconds": done.timing.verify,
    }
