"""Join the trees of one round: first place them side by side below one root, then merge equal siblings into one node.

Joining does not change any drafter's draws. A token that two drafters proposed is one node with two proposals, each
judged by its own q̂. Dropping a proposal would bias the output, because the decision to drop depends on the draw.
"""

from collections.abc import Sequence

from specdec.rules.draft import Draft
from specdec.trees.tree import ROOT, Draws, Tree, TreeDraft


def as_tree(draft: Draft | TreeDraft) -> TreeDraft:
    """Convert a chain to a tree; return a tree unchanged."""
    if isinstance(draft, TreeDraft):
        return draft
    return TreeDraft(Tree.chain(len(draft.tokens)), draft.tokens, (*draft.probs, None) if draft.probs else ())


def side_by_side(drafts: Sequence[TreeDraft]) -> TreeDraft:
    """Place the trees below one root, with nodes ordered by depth and, within a depth, in the order of `drafts`.

    All trees have the same mode: the children of all are sampled, or of none.
    """
    depth = [
        (each.tree.depths[node], owner, node) for owner, each in enumerate(drafts) for node in range(len(each.tree))
    ]
    order = [(owner, node) for _, owner, node in sorted(depth)]
    place = {(owner, ROOT): ROOT for owner in range(len(drafts))} | {each: at for at, each in enumerate(order)}
    tree = Tree(tuple(place[owner, drafts[owner].tree.parents[node]] for owner, node in order))
    tokens = tuple(drafts[owner].tokens[node] for owner, node in order)
    roots = [(owner, ROOT) for owner in range(len(drafts))]
    slots = [roots, *([each] for each in order)]
    if not any(each.probs or each.proposals for each in drafts):
        return TreeDraft(tree, tokens)
    return TreeDraft(tree, tokens, proposals=tuple(_moved(drafts, slot, place) for slot in slots))


def forked(chain: Draft, second: int) -> TreeDraft:
    """A chain with another draw for its first position, from the same q̂ and after the chain's own."""
    rest = len(chain.tokens) - 1
    tree = Tree((ROOT, ROOT, *((0, *range(2, rest + 1)) if rest else ())))
    tokens = (chain.tokens[0], second, *chain.tokens[1:])
    if not chain.probs:
        return TreeDraft(tree, tokens)
    after_first, *others = (*chain.probs[1:], None)
    return TreeDraft(tree, tokens, (chain.probs[0], after_first, None, *others))


def merged(draft: TreeDraft) -> TreeDraft:
    """Merge equal siblings into one node, which keeps every proposal and the children of each."""
    place: dict[int, int] = {ROOT: ROOT}
    found: dict[tuple[int, int], int] = {}
    for node, parent in enumerate(draft.tree.parents):
        place[node] = found.setdefault((place[parent], draft.tokens[node]), len(found))
    if len(found) == len(draft.tree):
        return draft
    tree, tokens = Tree(tuple(parent for parent, _ in found)), tuple(token for _, token in found)
    if not (draft.probs or draft.proposals):
        return TreeDraft(tree, tokens)
    proposals: list[tuple[Draws, ...]] = [()] * (len(tree) + 1)
    for node in range(ROOT, len(draft.tree)):
        proposals[place[node] + 1] += tuple(_at(each, place) for each in draft.drawn(node))
    return TreeDraft(tree, tokens, proposals=tuple(proposals))


def _moved(
    drafts: Sequence[TreeDraft], slot: Sequence[tuple[int, int]], place: dict[tuple[int, int], int]
) -> tuple[Draws, ...]:
    """The draws at nodes of several drafts, given by owner and node, with the children renumbered."""
    return tuple(
        _at(each, {child: place[owner, child] for child in each.children})
        for owner, node in slot
        for each in drafts[owner].drawn(node)
    )


def _at(draws: Draws, place: dict[int, int]) -> Draws:
    return Draws(tuple(place[child] for child in draws.children), draws.law)
