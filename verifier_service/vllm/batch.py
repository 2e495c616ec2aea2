"""What travels beside vLLM's own messages: rows to the workers, and verdicts back; nothing here imports vLLM."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from specdec.errors import InternalError
from specdec.rules.draft import Verdict
from verifier_service.backends.batch_plan import Row

ROWS = "specdec_rows"
"""The attribute of a scheduler's output that has the rows of the pass."""
VERDICTS = "specdec_verdicts"
"""The attribute of a worker's output that has the verdicts on them."""


@dataclass(frozen=True, slots=True)
class PassRows:
    """The rows that a pass judges."""

    rows: Mapping[str, Row] = field(default_factory=dict)
    """By vLLM's request id; a request that still reads its prompt has none."""
    vocab_size: int = 0
    """Valid ids are below it; the model's matrix may have more rows."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What became of a row."""

    result: Verdict | InternalError
    offered: int
    """How many of its drafts the pass computed."""


@dataclass(frozen=True, slots=True)
class ComputedPiece:
    """The tokens of a request that a pass computes."""

    start: int
    """Tokens that had keys and values before."""
    count: int
    """Committed tokens that it computes."""
    drafts: int
    """Drafts behind them, placeholders of vLLM included."""
