"""Drafts of the target's head for the rows of a pass, made on the model's thread just before the pass."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog
from torch import Tensor

from specdec.engine.heads.sequences import HeadSequences
from specdec.rules.draft import NO_DRAFT, Draft, SparseProbs
from specdec.rules.proposal import propose_certain, propose_each
from specdec.sampling.distribution import History, certain_tokens, probabilities
from verifier_service.backends.batch_plan import Row

_SUPPORT = 64
"""Most ids in a q̂."""

_log = structlog.get_logger()


@dataclass(slots=True)
class _Chain:
    """Draft of one row so far."""

    row: Row
    most: int
    """Number of tokens to draft."""
    tokens: list[int] = field(default_factory=list)
    probs: list[SparseProbs] = field(default_factory=list)

    @property
    def draft(self) -> Draft:
        return Draft(tuple(self.tokens), tuple(self.probs))

    def history(self) -> History:
        """Return the history for the next draft, with the grammar's mask. Drafts before it count as output."""
        row = self.row
        seen = row.history
        if row.call.sampling.needs_history:
            seen = History(seen.prompt, (*seen.output, *self.tokens))
        if row.grammar is None or row.grammar.expensive:
            return seen
        masks = row.grammar.masks(row.tokens[row.call.prompt_len :], self.tokens)
        return History(seen.prompt, seen.output, masks[-1])


class HeadDrafter:
    """Drafts chains for many rows at once: each step of the head drafts one token for each row."""

    def __init__(self, head: HeadSequences) -> None:
        self._head = head

    def drafts(self, rows: Sequence[Row]) -> dict[Row, Draft]:
        """Return the draft of each row that requests one; empty for a row whose head cannot draft now.

        A row needs the states of all of its tokens except the last, so a row whose prompt is incomplete has no draft.
        """
        asking = [row for row in rows if row.head.gamma]
        able = [row for row in asking if self._can_draft(row)]
        most = self._head.most
        chains = [_Chain(row, row.head.gamma if most is None else min(row.head.gamma, most)) for row in able]
        if chains:
            try:
                self._draft(chains)
            except Exception as error:  # noqa: BLE001 - without drafts every row still has its pass
                _log.error("head_failed", exc_info=error)
                chains = []
            finally:
                self._head.finish([row.kv_name for row in able])
        return dict.fromkeys(asking, NO_DRAFT) | {chain.row: chain.draft for chain in chains}

    def is_behind(self, row: Row) -> bool:
        """Whether the next draft of a row takes longer than others, because the head must first read many states."""
        return self._head.is_behind(row.kv_name)

    def _can_draft(self, row: Row) -> bool:
        if row.kv_name not in self._head:
            return False
        complete = row.goal == len(row.tokens) == self._head.end(row.kv_name) + 1
        return complete and self._head.can_draft(row.kv_name, row.head.gamma)

    def _draft(self, chains: Sequence[_Chain]) -> None:
        going = list(chains)
        logits = self._head.begin([each.row.kv_name for each in going], [each.row.tokens[-1] for each in going])
        while going:
            drawn = _drawn(going, logits)
            rows = []
            for place, (chain, found) in enumerate(zip(going, drawn, strict=True)):
                if found is None:
                    continue
                token, probs = found
                chain.tokens.append(token)
                if probs is not None:
                    chain.probs.append(probs)
                if len(chain.tokens) < chain.most:
                    rows.append(place)
            going = [going[place] for place in rows]
            if going:
                last = [each.tokens[-1] for each in going]
                logits = self._head.extend([each.row.kv_name for each in going], rows, last)


def _drawn(chains: Sequence[_Chain], logits: Tensor) -> list[tuple[int, SparseProbs | None] | None]:
    """Draw the next draft of each chain, with its q̂ in a mode that needs one.

    None for a chain that ends because the sampling parameters or the grammar leave no id that the head can draft.

    Args:
        chains: chains that are not complete [N].
        logits: logits of the next token of each [N, V].
    """
    params, histories = [each.row.call.sampling for each in chains], [each.history() for each in chains]
    modes = [each.row.call.speculation.mode for each in chains]
    if logits.is_cpu and all(each.temperature == 0.0 for each in params):
        best, mass = certain_tokens(logits, params, histories)
        able = (~mass.isnan()).nonzero()[:, 0]
        found = propose_certain([modes[place] for place in able.tolist()], best[able], mass[able])
    else:
        q = probabilities(logits, params, histories)
        able = (~q.isnan().any(-1)).nonzero()[:, 0]
        places = able.tolist()
        found = propose_each(
            [modes[place] for place in places],
            q[able],
            seeds=[params[place].seed for place in places],
            positions=[len(chains[place].row.tokens) + len(chains[place].tokens) for place in places],
            k=_SUPPORT,
            starts=[len(chains[place].row.tokens) for place in places],
        )
    drawn: list[tuple[int, SparseProbs | None] | None] = [None] * len(chains)
    for place, each in zip(able.tolist(), found, strict=True):
        drawn[place] = each
    return drawn
