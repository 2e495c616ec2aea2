"""Checks what a drafter sends when it arrives, by the rules of the pass that would judge it."""

from dataclasses import replace

from specdec.errors import FieldInvalid
from specdec.rules.checks import check_drafts
from specdec.rules.draft import Draft
from specdec.rules.multidraft import Siblings
from specdec.rules.speculation import Mode
from specdec.trees.joining import as_tree, merged
from specdec.trees.tree import TreeDraft
from specdec.trees.verification import check_trees
from specdec.wire.session import TreePlan

MOST_DRAFTS = 128
"""Most drafts held for one session, and of one message; drafters send far fewer."""


def checked(draft: Draft | TreeDraft, mode: Mode, plan: TreePlan | None, vocab_size: int) -> Draft | TreeDraft:
    """The draft, without distributions where the mode needs none.

    Args:
        plan: how trees are made; None for a session that asked for chains.

    Raises:
        FieldInvalid, TokenOutOfRange: the draft is malformed, or no answer to what was asked.
    """
    if len(draft.tokens) > MOST_DRAFTS:
        raise FieldInvalid(f"a message has at most {MOST_DRAFTS} drafts, got {len(draft.tokens)}", "tokens")
    if mode in (Mode.COUPLED, Mode.OFF):
        draft = TreeDraft(draft.tree, draft.tokens) if isinstance(draft, TreeDraft) else replace(draft, probs=())
    if plan is not None:
        check_trees(Siblings.of(mode, replacement=plan.replacement), [merged(as_tree(draft))], vocab_size)
    elif isinstance(draft, TreeDraft):
        raise FieldInvalid("the session asked for chains, and got a tree", "parents")
    else:
        check_drafts(mode, [draft], vocab_size)
    return draft
