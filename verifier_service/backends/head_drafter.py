"""Drafts of the target's head for the rows of a pass, made on the model's thread just before the pass."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog
import torch
from torch import Tensor

from specdec.engine.heads.sequences import HeadSequences
from specdec.rules.coupling import earliest
from specdec.rules.draft import MAX_WEIGHT, NO_DRAFT, Draft, SparseProbs
from specdec.rules.multidraft import Siblings
from specdec.rules.proposal import propose_certain, propose_each, propose_siblings
from specdec.rules.speculation import Mode
from specdec.sampling.distribution import History, certain_tokens, probabilities
from specdec.sampling.params import SamplingParams
from specdec.trees.joining import forked
from specdec.trees.tree import TreeDraft
from verifier_service.backends.batch_plan import Row

_SUPPORT = 64
"""Most ids in a q̂."""
_USUAL = 8
"""Most unread states of a sequence that drafts in every round, about."""

_log = structlog.get_logger()


class _Drawn(NamedTuple):
    """Draws for one position."""

    tokens: Sequence[int]
    """The tokens in the order of the draw; empty if the request leaves no id that the head can draft."""
    probs: SparseProbs | None = None
    """Their q̂, in a mode that needs one."""


_NOTHING = _Drawn(())


@dataclass(slots=True)
class _Chain:
    """Draft of one row so far."""

    row: Row
    most: int
    """Number of tokens to draft."""
    tokens: list[int] = field(default_factory=list)
    probs: list[SparseProbs] = field(default_factory=list)
    second: int | None = None
    """Second draft for the first position; None if there is none."""

    @property
    def draft(self) -> Draft | TreeDraft:
        chain = Draft(tuple(self.tokens), tuple(self.probs))
        return chain if self.second is None else forked(chain, self.second)

    @property
    def forks(self) -> bool:
        """Whether the next position gets two drafts."""
        return self.row.head.siblings and not self.tokens

    def add(self, drawn: _Drawn) -> None:
        """Append the draws for the next position, at least one."""
        first, *others = drawn.tokens
        self.tokens.append(first)
        if drawn.probs is not None:
            self.probs.append(drawn.probs)
        if others:
            (self.second,) = others

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
    """Drafts for many rows at once: each step of the head drafts one position of each row."""

    def __init__(self, head: HeadSequences) -> None:
        self._head = head

    def drafts(self, rows: Sequence[Row]) -> dict[Row, Draft | TreeDraft]:
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
        drafts: dict[Row, Draft | TreeDraft] = dict.fromkeys(asking, NO_DRAFT)
        return drafts | {chain.row: chain.draft for chain in chains}

    def is_behind(self, row: Row) -> bool:
        """Whether the next draft of a row takes longer than others, because the head must first read many states."""
        return self._head.unread(row.kv_name) > _USUAL

    def _can_draft(self, row: Row) -> bool:
        if row.kv_name not in self._head:
            return False
        complete = row.goal == len(row.tokens) == self._head.end(row.kv_name) + 1
        return complete and self._head.can_draft(row.kv_name, row.head.gamma)

    def _draft(self, chains: Sequence[_Chain]) -> None:
        going = list(chains)
        logits = self._head.begin([each.row.kv_name for each in going], [each.row.tokens[-1] for each in going])
        while going:
            rows = []
            for place, (chain, drawn) in enumerate(zip(going, _drawn(going, logits), strict=True)):
                if not drawn.tokens:
                    continue
                chain.add(drawn)
                if len(chain.tokens) < chain.most:
                    rows.append(place)
            going = [going[place] for place in rows]
            if going:
                last = [each.tokens[-1] for each in going]
                logits = self._head.extend([each.row.kv_name for each in going], rows, last)


def _drawn(chains: Sequence[_Chain], logits: Tensor) -> list[_Drawn]:
    """Draw the drafts for the next position of each chain.

    Args:
        chains: chains that are not complete [N].
        logits: logits of the next token of each [N, V].
    """
    groups: dict[bool, list[int]] = defaultdict(list)
    for place, chain in enumerate(chains):
        groups[chain.forks].append(place)
    if len(groups) == 1:
        return _drawn_pairs(chains, logits) if chains[0].forks else _drawn_singly(chains, logits)
    drawn: dict[int, _Drawn] = {}
    for forks, places in groups.items():
        draw = _drawn_pairs if forks else _drawn_singly
        drawn |= zip(places, draw([chains[place] for place in places], logits[places]), strict=True)
    return [drawn[place] for place in range(len(chains))]


def _drawn_singly(chains: Sequence[_Chain], logits: Tensor) -> list[_Drawn]:
    """Draw one token for each chain; arguments as for `_drawn`."""
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
    drawn = [_NOTHING] * len(chains)
    for place, (token, probs) in zip(able.tolist(), found, strict=True):
        drawn[place] = _Drawn((token,), probs)
    return drawn


def _drawn_pairs(chains: Sequence[_Chain], logits: Tensor) -> list[_Drawn]:
    """Draw up to two different tokens for the first position of each chain; arguments as for `_drawn`.

    At temperature 0 they are the two most likely ones, and any q̂ gives the target's token.
    """
    params, histories = [each.row.call.sampling for each in chains], [each.history() for each in chains]
    modes = [each.row.call.speculation.mode for each in chains]
    if logits.is_cpu and all(each.temperature == 0.0 for each in params):
        return list(map(_greedy, _two_best(logits, params, histories), modes))
    q = probabilities(logits, [each.ranking for each in params], histories)
    groups: dict[tuple[Mode, bool], list[int]] = defaultdict(list)
    for place in (~q.isnan().any(-1)).nonzero()[:, 0].tolist():
        groups[modes[place], params[place].temperature > 0.0].append(place)
    drawn = [_NOTHING] * len(chains)
    for (mode, sampled), places in groups.items():
        seeds = [params[place].seed for place in places]
        positions = [len(chains[place].row.tokens) for place in places]
        for place, pair in zip(places, _pairs(mode, q[places], seeds, positions, sampled=sampled), strict=True):
            drawn[place] = pair
    return drawn


def _two_best(
    logits: Tensor, params: Sequence[SamplingParams], histories: Sequence[History]
) -> Iterator[tuple[int, ...]]:
    """Yield the two most likely ids of each row on the host, fewer if the request allows fewer."""
    best, mass = certain_tokens(logits, params, histories)
    second, other = certain_tokens(logits.scatter(1, best[:, None], -math.inf), params, histories)
    counts = (2 - mass.isnan().int() - other.isnan().int()).tolist()
    for pair, count in zip(torch.stack([best, second], 1).tolist(), counts, strict=True):
        yield tuple(pair[:count])


def _pairs(mode: Mode, q: Tensor, seeds: Sequence[int], positions: Sequence[int], *, sampled: bool) -> list[_Drawn]:
    """Draw two tokens from each row of q, or one from a row with only one; arguments as for `propose_siblings`."""
    if not sampled:
        likely, _ = propose_siblings(Siblings.DETERMINISTIC, q, seeds, positions, _SUPPORT, range(2))
        return [_greedy(pair, mode) for pair in likely]
    if mode is Mode.COUPLED:
        mass, ids = q.topk(min(_SUPPORT, q.shape[1]))
        return list(map(_Drawn, earliest(mass.cpu(), ids.cpu(), seeds, positions, 2)))
    families, laws = propose_siblings(Siblings.WITHOUT_REPLACEMENT, q, seeds, positions, _SUPPORT, range(2))
    return list(map(_Drawn, families, laws))


def _greedy(tokens: Sequence[int], mode: Mode) -> _Drawn:
    """Return draws at temperature 0, with a q̂ of equal probabilities in a mode that needs one."""
    if not tokens or mode is Mode.COUPLED:
        return _Drawn(tokens)
    return _Drawn(tokens, SparseProbs(torch.tensor(sorted(tokens)), torch.full((len(tokens),), MAX_WEIGHT)))
