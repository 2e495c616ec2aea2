"""Drafts that cost nothing: the text that a grammar forces after a draft."""

from collections.abc import Sequence

from specdec.rules.draft import Draft, certain
from specdec.rules.speculation import Mode
from verifier_service.backends.batch_plan import Row

MOST = 16
"""Most forced tokens of one round."""


def with_forced(draft: Draft, row: Row, tokens: Sequence[int], room: int) -> Draft:
    """The draft, and after it the tokens that the grammar of the row forces.

    The text is forced, but not the way in which tokens write it, so the target judges them as it judges any draft that
    was not sampled: each is a point mass.

    Args:
        draft: what a drafter drafted; it may be empty.
        room: tokens that the draft may have.
    """
    speculation = row.call.speculation
    most = room if speculation.gamma is None else min(room, speculation.gamma)
    if row.grammar is None or speculation.mode is Mode.OFF:
        return draft
    output = (*tokens[row.call.prompt_len :], *draft.tokens)
    forced = row.grammar.forced(output, min(MOST, most - len(draft.tokens)))
    if not forced:
        return draft
    steps = (*draft.steps, *(None for _ in forced)) if draft.steps else ()
    return Draft(draft.tokens + forced, draft.probs + certain(forced, speculation.mode).probs, steps)
