"""Attachments to vLLM's own messages: rows to the workers, and verdicts back. This module does not import vLLM."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from specdec.errors import InternalError
from specdec.rules.draft import Verdict
from verifier_service.backends.batch_plan import Row

ROWS = "specdec_rows"
"""Attribute of a scheduler's output that holds the rows of the pass."""
VERDICTS = "specdec_verdicts"
"""Attribute of a worker's output that holds the verdicts of the pass."""


@dataclass(frozen=True, slots=True)
class PassRows:
    """Rows that a pass judges."""

    rows: Mapping[str, Row] = field(default_factory=dict)
    """Rows by vLLM's request id. A request whose prompt is incomplete has none."""
    vocab_size: int = 0
    """Size of the vocabulary. The output matrix of the model may have more rows."""


@dataclass(frozen=True, slots=True)
class Judged:
    """Result of a row."""

    result: Verdict | InternalError
    offered: int
    """Number of the row's drafts that the pass computed."""


@dataclass(frozen=True, slots=True)
class ComputedPiece:
    """Tokens of a request that a pass computes."""

    start: int
    """Number of tokens that had KV before the pass."""
    count: int
    """Number of committed tokens that the pass computes."""
    drafts: int
    """Number of drafts after them, including vLLM's placeholders."""
