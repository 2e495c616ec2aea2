"""Verdicts on the draft trees of one round (SpecInfer, arXiv 2305.09781): descend from the root while a child is kept.

Every draw at absolute position t uses (seed, t, purpose, index among the siblings), so a verdict depends only on its
own rows of p. A chain gets the same verdict as from `specdec.rules.verification` in mode rejection.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise, product
from typing import Any

import torch
from torch import Tensor

from specdec.errors import FieldInvalid, InternalError, TokenOutOfRange
from specdec.rules.checks import check_probs, masses, proper_counts
from specdec.rules.coupling import draw
from specdec.rules.draft import SparseProbs, Verdict
from specdec.rules.multidraft import NONE, Siblings, agreement, with_replacement, without_replacement
from specdec.rules.padding import NO_PROBS, supports
from specdec.rules.rng import Lane, final_uniform, uniform
from specdec.rules.speculation import Mode
from specdec.sampling.distribution import sample
from specdec.trees.flat import FlatTrees, flatten_trees, unflatten_trees
from specdec.trees.tree import ROOT, TreeDraft


def verify_tree(
    siblings: Siblings, p: Tensor, drafts: Sequence[TreeDraft], seeds: Sequence[int], positions: Sequence[int]
) -> list[Verdict]:
    """Judge a batch of trees; an empty tree gets one plain token.

    At temperature 0 the walk is greedy: when siblings differ, it keeps the longest path of argmaxes.

    Args:
        siblings: how the children were drawn, which selects the rule.
        p: target distributions [R, V], floating: for each draft the one after the root, then after each of its n nodes.
        drafts: trees of any topology [B].
        seeds: seed of each session [B].
        positions: absolute position of the children of each root, which is the committed length [B].

    Raises:
        FieldInvalid, TokenOutOfRange: `check_trees` refuses a draft.
        InternalError, NoDistribution: shapes disagree, or the first row of a draft is not a distribution. If a later
            row on the accepted path is not, the verdict commits only the drafts before that row.
    """
    if not len(drafts) == len(seeds) == len(positions):
        raise InternalError(f"{len(drafts)} drafts, {len(seeds)} seeds, {len(positions)} positions")
    mass = masses(p, rows=sum(len(draft.tree) + 1 for draft in drafts))
    check_trees(siblings, drafts, p.shape[1])
    if not drafts:
        return []
    if siblings is Siblings.DETERMINISTIC:
        paths, final = _agreed(p, drafts, seeds, positions)
    else:
        paths, final = _judged(siblings, p, mass, drafts, tree_noise(drafts, seeds, positions))
    counts = _proper(mass.cpu(), drafts, paths)
    return [_verdict(*each) for each in zip(drafts, paths, final.tolist(), counts, strict=True)]


def verify_certain_trees(
    siblings: Siblings, best: Tensor, mass: Tensor, drafts: Sequence[TreeDraft], vocab_size: int
) -> list[Verdict]:
    """`verify_tree` on the host, for rows of p with one possible token, as at temperature 0.

    Args:
        siblings: how the children were drawn; any way commits the same tokens here.
        best: the one possible token of each row of p, int64 [R].
        mass: sum of each row of p, NaN if it is not a distribution, float64 [R].
        drafts: trees of any topology whose siblings differ [B].
        vocab_size: number of ids in a row of p.

    Raises:
        FieldInvalid, TokenOutOfRange, NoDistribution, InternalError: as in `verify_tree`.
    """
    check_trees(siblings, drafts, vocab_size)
    proper = mass > 0.0  # no path goes on after a row without a distribution
    chosen = torch.where(proper, best, NONE).tolist()
    ends = [0, *accumulate(len(draft.tree) + 1 for draft in drafts)]
    own = [chosen[start:end] for start, end in pairwise(ends)]
    paths = [_certain_path(draft, tokens) for draft, tokens in zip(drafts, own, strict=True)]
    final = [tokens[_end(path) + 1] for path, tokens in zip(paths, own, strict=True)]
    counts = _proper(mass, drafts, paths)
    return [_verdict(*each) for each in zip(drafts, paths, final, counts, strict=True)]


def check_trees(siblings: Siblings, drafts: Sequence[TreeDraft], vocab_size: int) -> None:
    """Refuse malformed trees. Called when a draft arrives, so that a malformed draft does not enter a batch.

    Raises:
        TokenOutOfRange: a token is not in the vocabulary.
        FieldInvalid: sampled children have no q̂, or a q̂ that is malformed or lacks a child; or siblings that were not
            sampled with replacement share a token.
    """
    for draft in drafts:
        if not all(0 <= token < vocab_size for token in draft.tokens):
            raise TokenOutOfRange(f"a draft token is outside the vocabulary of {vocab_size}", "tokens")
        if siblings is not Siblings.WITH_REPLACEMENT:
            _check_distinct(siblings, draft)
    if siblings is not Siblings.DETERMINISTIC:
        _check_laws(drafts, vocab_size)


def _judged(
    siblings: Siblings, p: Tensor, mass: Tensor, drafts: Sequence[TreeDraft], noise: tuple[Tensor, Tensor]
) -> tuple[list[tuple[int, ...]], Tensor]:
    """Judge trees whose children were sampled. Return the paths, and the last token of each, int64 [B].

    `noise` are the last fields of `FlatTrees`.
    """
    if not p.is_cpu or p.dtype != torch.float32:  # the operator takes float32 on the host only
        return _walked(siblings, p, mass, drafts, *noise)
    flat = flatten_trees(drafts, *noise)
    ends, final = torch.ops.specdec.judge_trees(p, mass, *flat, siblings is Siblings.WITH_REPLACEMENT)
    return [draft.tree.path_to(end) for draft, end in zip(drafts, ends.tolist(), strict=True)], final


def judge_trees_by_torch(p: Tensor, mass: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
    """PyTorch implementation of recursive rejection on the host.

    Args:
        p: target distributions [R, V].
        mass: the sum of each row of p, float64 [R].
        args: the fields of `FlatTrees`, and whether siblings were sampled with replacement.

    Returns:
        The last kept node of each tree, ROOT if none is, and its last token, both int64 [B].
    """
    *parts, replacement = args
    flat = FlatTrees(*parts)
    siblings = Siblings.of(Mode.REJECTION, replacement=replacement)
    paths, final = _walked(siblings, p, mass, unflatten_trees(flat), flat.u, flat.last)
    return torch.tensor(list(map(_end, paths))), final


# `host_judge.cpp` of the engine registers an implementation for the CPU, if it is available.
_PARTS = ", ".join(f"Tensor {name}" for name in FlatTrees._fields)
torch.library.define("specdec::judge_trees", f"(Tensor p, Tensor mass, {_PARTS}, bool replacement) -> (Tensor, Tensor)")
torch.library.impl("specdec::judge_trees", "CompositeExplicitAutograd", judge_trees_by_torch)


def _walked(
    siblings: Siblings, p: Tensor, mass: Tensor, drafts: Sequence[TreeDraft], u: Tensor, last: Tensor
) -> tuple[list[tuple[int, ...]], Tensor]:
    """`_judged` by PyTorch, on any device."""
    paths, law = walk(siblings, p, mass, drafts, u.to(p.device))
    depths = [len(path) for path in paths]
    leaves = [int(_is_leaf(draft, path)) for draft, path in zip(drafts, paths, strict=True)]
    return paths, sample(law, last[range(len(drafts)), depths, leaves].to(p.device))


def walk(
    siblings: Siblings, p: Tensor, mass: Tensor, drafts: Sequence[TreeDraft], u: Tensor
) -> tuple[list[tuple[int, ...]], Tensor]:
    """Recursive rejection at each node on the way down: the paths, and the distribution of each last token [B, V].

    Args:
        siblings: sampled with or without replacement.
        p: target distributions [R, V] as in `verify_tree`.
        mass: Σp of each row, float64 [R].
        drafts: trees [B].
        u: uniforms in [0, 1) by depth and index among the siblings [B, D, K]; D is one more than the deepest draft.
    """
    paths: list[tuple[int, ...]] = [()] * len(drafts)
    law = mass.new_empty(len(drafts), p.shape[1])
    going = list(range(len(drafts)))
    for level in u.unbind(1):
        if not going:
            break
        nodes = [_end(paths[b]) for b in going]
        rows = _rows(drafts, going, nodes)
        after = p[rows].double() / mass[rows, None]
        kept, law[going] = _choose(siblings, after, [drafts[b] for b in going], nodes, level[going])
        going = _descend(paths, going, kept)
    return paths, law


def _agreed(
    p: Tensor, drafts: Sequence[TreeDraft], seeds: Sequence[int], positions: Sequence[int]
) -> tuple[list[tuple[int, ...]], Tensor]:
    """Descend while a child equals the target's own draw. Return the paths, and each last draw, int64 [B].

    The draws come from `specdec.rules.coupling`, so for any tree the output is a function of (seed, target), and the
    same as in modes coupled and off.
    """
    paths: list[tuple[int, ...]] = [()] * len(drafts)
    final = torch.zeros(len(drafts), dtype=torch.int64, device=p.device)
    going = list(range(len(drafts)))
    while going:
        nodes = [_end(paths[b]) for b in going]
        at = [positions[b] + len(paths[b]) for b in going]
        after = p[_rows(drafts, going, nodes)]
        final[going] = draw(after, [seeds[b] for b in going], at)
        families = [drafts[b].tree.children[node + 1] for b, node in zip(going, nodes, strict=True)]
        children = _tokens([drafts[b] for b in going], families, p.device)
        going = _descend(paths, going, _nodes(families, agreement(final[going], children)))
    return paths, final


def _certain_path(draft: TreeDraft, chosen: Sequence[int]) -> tuple[int, ...]:
    """The nodes whose token is the only one possible there; `chosen` is that of each row of p [n + 1]."""
    path: tuple[int, ...] = ()
    while True:
        here = _end(path)
        kept = next((child for child in draft.tree.children[here + 1] if draft.tokens[child] == chosen[here + 1]), None)
        if kept is None:
            return path
        path = (*path, kept)


def _descend(paths: list[tuple[int, ...]], going: Sequence[int], kept: Sequence[int]) -> list[int]:
    """Extend the paths of the drafts that keep a child. Return the indices of these drafts."""
    on = [(b, node) for b, node in zip(going, kept, strict=True) if node != NONE]
    for b, node in on:
        paths[b] += (node,)
    return [b for b, _ in on]


def _choose(
    siblings: Siblings, p: Tensor, drafts: Sequence[TreeDraft], nodes: Sequence[int], u: Tensor
) -> tuple[list[int], Tensor]:
    """Apply the rule at one node of each draft. Return the kept child or NONE, and the token's distribution for NONE.

    The draws of several drafters are judged in sequence: the residual of one is the p of the next.
    """
    rule = with_replacement if siblings is Siblings.WITH_REPLACEMENT else without_replacement
    drawn = [draft.drawn(node) for draft, node in zip(drafts, nodes, strict=True)]
    kept, law, used = [NONE] * len(drafts), p, torch.zeros(len(drafts), 1, dtype=torch.int64, device=p.device)
    for turn in range(max(1, *map(len, drawn))):
        laws = [each[turn].law if turn < len(each) else NO_PROBS for each in drawn]
        families = [each[turn].children if turn < len(each) else () for each in drawn]
        tokens = _tokens(drafts, families, p.device)
        places = (used + torch.arange(tokens.shape[1], device=p.device)).clamp_max_(u.shape[1] - 1)
        choice = rule(law / law.sum(1, keepdim=True), *supports(laws, p.device), tokens, u.gather(1, places))
        judged = torch.tensor([node == NONE for node in kept], device=p.device)
        law = torch.where(judged[:, None], choice.left, law)
        found = _nodes(families, choice.child)
        kept = [new if old == NONE else old for old, new in zip(kept, found, strict=True)]
        used = used + torch.tensor([[len(family)] for family in families], device=p.device)
    return kept, law


def _nodes(families: Sequence[Sequence[int]], places: Tensor) -> list[int]:
    """The node at the given place of each family, NONE for place NONE."""
    chosen = zip(families, places.tolist(), strict=True)
    return [NONE if place == NONE else family[place] for family, place in chosen]


def _tokens(drafts: Sequence[TreeDraft], families: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """The tokens of one family of each draft, int64 [n, K], padded with NONE."""
    width = max(map(len, families))
    rows = [
        [*(draft.tokens[child] for child in family), *[NONE] * (width - len(family))]
        for draft, family in zip(drafts, families, strict=True)
    ]
    return torch.tensor(rows, dtype=torch.int64).to(device)


def _rows(drafts: Sequence[TreeDraft], going: Sequence[int], nodes: Sequence[int]) -> list[int]:
    """Row of p of one node of each draft in `going`."""
    ends = list(accumulate(len(draft.tree) + 1 for draft in drafts))
    return [ends[b] - len(drafts[b].tree) + node for b, node in zip(going, nodes, strict=True)]


def _end(path: tuple[int, ...]) -> int:
    return path[-1] if path else ROOT


def tree_noise(drafts: Sequence[TreeDraft], seeds: Sequence[int], positions: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The last fields of `FlatTrees`; each position is judged in one round only.

    A last token below a leaf is a bonus or a plain token; any other is a recovered one, which has its own purpose.
    """
    deep = 1 + max((depth + 1 for draft in drafts for depth in draft.tree.depths), default=0)
    wide = max(
        1,
        *(
            sum(len(each.children) for each in draft.drawn(node))
            for draft in drafts
            for node in range(ROOT, len(draft.tree))
        ),
    )
    keys = list(product(range(len(drafts)), range(deep), range(wide)))
    u = uniform(
        [seeds[b] for b, _, _ in keys],
        [positions[b] + depth for b, depth, _ in keys],
        Lane.ACCEPT,
        indices=[place for _, _, place in keys],
    )
    keys = list(product(range(len(drafts)), range(deep), range(2)))
    last = final_uniform(
        [seeds[b] for b, _, _ in keys],
        [positions[b] + depth for b, depth, _ in keys],
        [not leaf for _, _, leaf in keys],
    )
    return u.view(len(drafts), deep, wide), last.view(len(drafts), deep, 2)


def _is_leaf(draft: TreeDraft, path: tuple[int, ...]) -> bool:
    return not draft.tree.children[_end(path) + 1]


def _proper(mass: Tensor, drafts: Sequence[TreeDraft], paths: Sequence[tuple[int, ...]]) -> list[int]:
    """Number of tokens of each verdict that come from distributions; only rows on the path are checked."""
    ends = [0, *accumulate(len(draft.tree) + 1 for draft in drafts)]
    reached = [first + 1 + node for first, path in zip(ends, paths, strict=False) for node in (ROOT, *path)]
    lengths = [len(path) + 1 for path in paths]
    return proper_counts(mass[reached], [0, *accumulate(lengths)][:-1], lengths)


def _verdict(draft: TreeDraft, path: tuple[int, ...], token: int, count: int) -> Verdict:
    tokens = (*(draft.tokens[node] for node in path), token)[:count]
    leaf = _is_leaf(draft, path)
    return Verdict(tokens, accepted=len(path), drafted=len(draft.tokens), path=path[: count - 1], at_leaf=leaf)


def _check_distinct(siblings: Siblings, draft: TreeDraft) -> None:
    drawn = (each.children for node in range(ROOT, len(draft.tree)) for each in draft.drawn(node))
    for family in draft.tree.children if siblings is Siblings.DETERMINISTIC else drawn:
        if len({draft.tokens[child] for child in family}) != len(family):
            raise FieldInvalid("siblings share a token", "tokens")


def _check_laws(drafts: Sequence[TreeDraft], vocab_size: int) -> None:
    laws: list[SparseProbs] = []
    slots: list[int] = []
    tokens: list[int] = []
    for draft in drafts:
        drawn = [each for node in range(ROOT, len(draft.tree)) for each in draft.drawn(node)]
        if {child for each in drawn for child in each.children} != set(range(len(draft.tree))):
            raise FieldInvalid("each set of siblings needs its distribution", "probs")
        for each in drawn:
            slots += [len(laws)] * len(each.children)
            tokens += [draft.tokens[child] for child in each.children]
            laws.append(each.law)
    if laws:
        check_probs(laws, slots, tokens, vocab_size)
