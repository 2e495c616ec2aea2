"""Attention of the new tokens of one session on plain PyTorch: products and masks, for any storage of keys."""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from specdec.engine.attention import AttentionRule
from specdec.trees.tree import Tree

FOLD_LIMIT = 32
"""Largest number of queries for which the query heads of a key head are folded into rows: one product for each key
head, but a larger mask."""


class AttentionSpan:
    """The `count` new tokens of one session after `start` earlier ones; they form `tree`, or a chain if it is None."""

    def __init__(self, start: int, count: int, tree: Tree | None = None) -> None:
        self.start = start
        self.count = count
        self._tree = tree
        self._masks: dict[tuple[int | None, int], Tensor] = {}

    def over(self, query: Tensor, keys: Tensor, values: Tensor, rule: AttentionRule) -> Tensor:
        """Attend to the keys from `first_seen` on, including the new keys.

        Args:
            query: [1, query heads, count, key width].
            keys: [1, heads, keys seen, key width].
            values: [1, heads, keys seen, value width].
            rule: attention parameters of the layer.

        Returns:
            [1, count, query heads, value width].
        """
        if rule.softcap is not None or rule.sinks is not None:
            return self._by_products(query, keys, values, rule)
        if self.count > FOLD_LIMIT:
            return self._unfolded(query, keys, values, rule)
        return self._folded(query, keys, values, rule)

    def first_seen(self, window: int | None) -> int:
        """Index of the first key that any query sees."""
        return 0 if window is None else max(0, self.start - window + 1)

    def _folded(self, query: Tensor, keys: Tensor, values: Tensor, rule: AttentionRule) -> Tensor:
        folded = fold(query, keys.shape[1])
        mask = self._mask(rule.window, query, query.shape[1] // keys.shape[1])
        out = scaled_dot_product_attention(folded, keys, values, attn_mask=mask, scale=rule.scale)
        return unfold(out, query.shape[1])

    def _unfolded(self, query: Tensor, keys: Tensor, values: Tensor, rule: AttentionRule) -> Tensor:
        chain = self._tree is None and (rule.window is None or self.count <= rule.window)
        causal = chain and self.start == 0
        out = scaled_dot_product_attention(
            query,
            keys,
            values,
            attn_mask=None if causal else self._mask(rule.window, query, 1),
            is_causal=causal,
            scale=rule.scale,
            enable_gqa=query.shape[1] != keys.shape[1],
        )
        return out.transpose(1, 2)

    def _by_products(self, query: Tensor, keys: Tensor, values: Tensor, rule: AttentionRule) -> Tensor:
        scale = query.shape[-1] ** -0.5 if rule.scale is None else rule.scale
        scores = torch.matmul(fold(query, keys.shape[1]), keys.transpose(2, 3)) * scale
        if rule.softcap is not None:
            scores = torch.tanh(scores / rule.softcap) * rule.softcap
        mask = self._mask(rule.window, query, query.shape[1] // keys.shape[1])
        if mask is not None:
            scores = scores + mask
        weights = _softmax(scores, rule.sinks).to(query.dtype)
        return unfold(torch.matmul(weights, values), query.shape[1])

    def _mask(self, window: int | None, query: Tensor, groups: int) -> Tensor | None:
        """Additive mask [groups·count, keys seen] in the dtype of `query`; None when every query sees every key."""
        if self.count == 1:
            return None
        if (window, groups) not in self._masks:
            before = self.start - self.first_seen(window)
            if self._tree is None:
                mask = tail_mask(self.count, before, window, query)
            else:
                mask = tree_mask(self._tree, before, window, query)
            self._masks[window, groups] = mask.repeat(groups, 1)
        return self._masks[window, groups]


def fold(query: Tensor, heads: int) -> Tensor:
    """[1, heads·G, n, width] -> [1, heads, G·n, width]: the G query heads that share a key head become rows."""
    _, _, count, width = query.shape
    return query.reshape(1, heads, -1, width) if count else query


def unfold(out: Tensor, heads: int) -> Tensor:
    """[1, key heads, G·n, width] -> [1, n, query heads, width], the inverse of `fold` with tokens first."""
    return out.reshape(1, heads, -1, out.shape[-1]).transpose(1, 2)


def tail_mask(count: int, before: int, window: int | None, like: Tensor) -> Tensor:
    """[count, before + count]: 0 where query i sees key j (i + before - window < j <= i + before), else -inf."""
    closed = like.new_full((count, before + count), float("-inf"))
    mask = closed.triu(before + 1)
    return mask if window is None else mask + closed.tril_(before - window)


def tree_mask(tree: Tree, before: int, window: int | None, like: Tensor) -> Tensor:
    """[n, before + n]: 0 where node i sees key j, else -inf.

    A node sees itself, its ancestors and the `before` tokens of the context, within the window that ends at its own
    position, which is the length of the context plus its depth.
    """
    depths = torch.tensor(tree.depths, device=like.device)
    visible = torch.cat([depths.new_ones(len(tree), before, dtype=torch.bool), tree.ancestors.to(like.device)], dim=1)
    if window is not None:
        positions = torch.cat([torch.arange(-before, 0, device=like.device), depths])
        visible &= positions > depths[:, None] - window
    return torch.where(visible, 0.0, float("-inf")).to(like.dtype)


def _softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Softmax in float32 over [1, heads, rows, keys]; sinks take part in it and are then dropped."""
    if sinks is None:
        return torch.softmax(scores, -1, dtype=torch.float32)
    _, heads, rows, _ = scores.shape
    share = sinks.to(scores.dtype).view(1, heads, -1, 1)
    share = share.repeat_interleave(rows // share.shape[2], dim=2)
    return torch.softmax(torch.cat([scores, share], -1), -1, dtype=torch.float32)[..., :-1]
