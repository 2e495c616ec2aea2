"""Checks of trees in the target's pass."""

from collections.abc import Sequence

import torch
from torch import Tensor

from specdec.engine import Chunk
from specdec.rules.draft import Verdict
from specdec.rules.speculation import Mode, Speculation
from specdec.sampling.params import SamplingParams
from specdec.trees.tree import ROOT, Tree, TreeDraft
from specdec.wire.generation import GenerationCall
from tests.conformance.checks.check import Check, count
from verifier_service.backends.batch_plan import Row, ScheduledChunk
from verifier_service.backends.target_pass import verify_batch

LOGITS = torch.tensor([0.0, -1.0, -2.0, -3.0])
PENALTY = SamplingParams(temperature=0.0, presence_penalty=1.5)
GREEDY = (0, 1, 0, 0)
"""Greedy output of these logits when each token loses 1.5 after it has been output."""
DRAFT = TreeDraft(Tree((ROOT, ROOT, 0, 1, 3)), (1, 0, 2, 1, 0))
"""The second child begins the argmax path, and nodes of the first child's path lie between its own."""


class SameLogits:
    """An engine that returns the same logits after every token."""

    def __init__(self) -> None:
        self.kept: list[int] = []

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        return LOGITS.repeat(sum(chunk.logits for chunk in chunks), 1)

    def truncate(self, session: str, length: int) -> None:
        """Do nothing: no state remains of a failed pass."""

    def keep(self, session: str, base_len: int, path: Sequence[int]) -> None:
        self.kept = list(path)


def wrong_paths() -> float:
    """Return 0 if a greedy pass commits the argmax path and keeps it, otherwise 1."""
    call = GenerationCall(
        tokens=(3,),
        prompt_len=1,
        sampling=PENALTY,
        max_tokens=9,
        stop_token_ids=(),
        speculation=Speculation(Mode.COUPLED),
    )
    engine = SameLogits()
    row = Row(call, "s", rank=0.0, limit=10, tokens=(3,), goal=1, draft=DRAFT)
    (verdict,) = verify_batch(engine, [ScheduledChunk(row, 0, 1)])  # type: ignore[arg-type]
    sound = isinstance(verdict, Verdict) and verdict.tokens == GREEDY and engine.kept == [0, 2, 4, 5]
    return float(not sound)


CHECKS: tuple[Check, ...] = (count("penalties along the paths of a tree", wrong_paths),)
