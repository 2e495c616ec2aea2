"""Buffers of drafted tokens that continue the committed ones. Chunks for another prefix are rejected."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from specdec.errors import FieldInvalid
from specdec.rules.checks import check_drafts
from specdec.rules.draft import NO_DRAFT, Draft, DraftStep, SparseProbs
from specdec.rules.multidraft import Siblings
from specdec.rules.prefix import PrefixHash, common_length
from specdec.rules.speculation import Mode
from specdec.trees.joining import as_tree, merged, side_by_side
from specdec.trees.tree import TreeDraft
from specdec.trees.verification import check_trees
from specdec.wire.draft import DraftTokens
from specdec.wire.session import TreePlan

MOST_DRAFTS = 128
"""Most drafts held for one session, and most drafts of one message."""
_PUSHED = 64
"""Most pushed chains held for outcomes of the pending verdict."""
_REMEMBERED = 256
"""Number of earlier prefix lengths whose hashes are kept to match late chunks."""


class DraftBuffer:
    """Tokens of one session: the committed tokens, then the drafts that continue them."""

    def __init__(self, committed: Sequence[int], limit: int) -> None:
        """Create a buffer without drafts that holds at most `limit` drafts."""
        self._tokens = list(committed)
        self._committed = len(committed)
        self._probs: list[SparseProbs | None] = []
        self._steps: list[DraftStep | None] = []
        self._limit = limit
        self._first = len(committed)
        self._pushed: dict[tuple[int, int], Draft] = {}
        """Pushed chains for prefixes that may be committed next, by prefix length and hash."""

    @cached_property
    def _hashes(self) -> list[PrefixHash]:
        """Hashes of the prefixes of length _first, _first + 1, ... up to all tokens.

        Made when they are first needed: that of a long prompt takes milliseconds, which are no part of its opening.
        """
        return [PrefixHash(self._tokens[: self._first])]

    def __len__(self) -> int:
        """Number of drafted tokens."""
        return len(self._tokens) - self._committed

    @property
    def committed(self) -> tuple[int, ...]:
        """All committed tokens."""
        return tuple(self._tokens[: self._committed])

    @property
    def committed_len(self) -> int:
        """Number of committed tokens."""
        return self._committed

    @property
    def end(self) -> int:
        """Number of committed and drafted tokens."""
        return len(self._tokens)

    def hash_at(self, length: int) -> int | None:
        """Return the hash of the prefix of that length, or None if it is not held."""
        if not self._first <= length <= self.end:
            return None
        return self._hashes[length - self._first].value

    def holds(self, gamma: int) -> bool:
        """Whether at least γ drafts have arrived."""
        return len(self) >= gamma

    def add(self, chunk: DraftTokens) -> bool:
        """Add the new tokens of a chunk. A late chunk may begin with tokens that are committed already.

        A chunk for a longer, unknown prefix is kept until the next verdict, which may commit that prefix.

        Returns:
            Whether tokens were added. False for a chunk of another prefix.
        """
        draft = chunk.draft
        if isinstance(draft, TreeDraft):
            return False
        if self.hash_at(chunk.base_len) != chunk.prefix_hash:
            if chunk.base_len > self._committed and len(self._pushed) < _PUSHED:
                self._pushed[chunk.base_len, chunk.prefix_hash] = draft
            return False
        tokens = draft.tokens
        same = common_length(self._tokens[chunk.base_len :], tokens)
        start = chunk.base_len + same
        if start < self._committed or same == len(tokens):
            return False
        self._truncate(start)
        room = self._limit - len(self)
        self._append(Draft(tokens[same:], draft.probs[same:], draft.steps[same:]).cut(room))
        return room > 0

    def take(self, gamma: int) -> Draft:
        """Return the first `gamma` drafts, or all if there are fewer. They stay until `advance`."""
        tokens = tuple(self._tokens[self._committed : self._committed + gamma])
        steps = tuple(self._steps[: len(tokens)])
        probs = tuple(probs for probs in self._probs[: len(tokens)] if probs is not None)
        return Draft(tokens, probs, steps if any(steps) else ())

    def advance(self, tokens: Sequence[int], judged: int) -> bool:
        """Commit the tokens of the verdict on the first `judged` drafts.

        Drafts after the committed tokens stay only if the whole draft was accepted and they continue the bonus token.
        A draft that was judged and not committed must never be judged again, because that would bias the output. If
        none stay, the chain pushed for exactly these committed tokens replaces them. That choice depends on the
        committed tokens alone, never on the tokens of the chain.

        Returns:
            False if drafts were dropped although they continue the committed tokens. The drafter assumes that they
            are in use, so the caller must reopen the session.
        """
        same = common_length(self._tokens[self._committed :], tokens)
        matching = same == len(tokens)
        keep = matching and len(tokens) > judged
        stuck = matching and not keep and len(self) > same
        self._truncate(self.end if keep else self._committed + same)
        self._extend(tokens[same:])
        self._committed += len(tokens)
        del self._probs[: len(tokens)], self._steps[: len(tokens)]
        self._forget_old()
        pushed, self._pushed = self._pushed, {}
        if not len(self):
            self._append(pushed.get((self._committed, self._hashes[-1].value), NO_DRAFT))
        return not stuck

    def clear(self) -> None:
        """Drop all drafts."""
        self._truncate(self._committed)
        self._pushed.clear()

    def _append(self, draft: Draft) -> None:
        self._extend(draft.tokens)
        self._probs += draft.probs or (None,) * len(draft.tokens)
        self._steps += draft.steps or (None,) * len(draft.tokens)

    def _truncate(self, length: int) -> None:
        del self._tokens[length:]
        del self._probs[length - self._committed :], self._steps[length - self._committed :]
        del self._hashes[length - self._first + 1 :]

    def _extend(self, tokens: Sequence[int]) -> None:
        hashes = self._hashes
        for token in tokens:
            self._tokens.append(token)
            hashes.append(hashes[-1].extended((token,)))

    def _forget_old(self) -> None:
        old = self._committed - self._first - _REMEMBERED
        if old > 0:
            del self._hashes[:old]
            self._first += old


def checked(draft: Draft | TreeDraft, mode: Mode, plan: TreePlan | None, vocab_size: int) -> Draft | TreeDraft:
    """Check a received draft and return it, without distributions if the mode needs none.

    Args:
        draft: draft as received.
        mode: speculation mode of the session.
        plan: shape of trees; None for a session that requested chains.
        vocab_size: size of the target's vocabulary.

    Raises:
        FieldInvalid, TokenOutOfRange: the draft is malformed or does not answer the request.
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


class TreeBuffer:
    """Committed tokens of one session, and at most one draft tree that continues them."""

    def __init__(self, committed: Sequence[int], limit: int) -> None:
        """Create a buffer without a tree that holds at most `limit` nodes."""
        self._tokens = list(committed)
        self._limit = limit
        self._draft: TreeDraft | None = None

    @cached_property
    def _hash(self) -> PrefixHash:
        """Hash of the committed tokens, made when it is first needed."""
        return PrefixHash(self._tokens)

    def __len__(self) -> int:
        """Number of drafted tokens."""
        return 0 if self._draft is None else len(self._draft.tokens)

    @property
    def committed(self) -> tuple[int, ...]:
        """All committed tokens."""
        return tuple(self._tokens)

    @property
    def committed_len(self) -> int:
        """Number of committed tokens."""
        return len(self._tokens)

    @property
    def end(self) -> int:
        """Length of the prefix that a tree continues: the number of committed tokens."""
        return len(self._tokens)

    def hash_at(self, length: int) -> int | None:
        """Return the hash of the committed tokens if there are `length`, else None."""
        return self._hash.value if length == len(self._tokens) else None

    def holds(self, gamma: int) -> bool:
        """Whether the tree has arrived or γ is 0. A tree arrives whole and may have fewer than γ nodes."""
        return self._draft is not None or not gamma

    def add(self, chunk: DraftTokens) -> bool:
        """Hold a tree for the committed tokens, or a chain from a drafter that makes no trees.

        Returns:
            Whether the draft was added.
        """
        if self._draft is not None or chunk.base_len != len(self._tokens) or chunk.prefix_hash != self._hash.value:
            return False
        self._draft = side_by_side([as_tree(chunk.draft)]).cut(self._limit)
        return True

    def take(self, gamma: int) -> Draft | TreeDraft:
        """Return the first `gamma` nodes of the tree. It stays until `advance`."""
        return NO_DRAFT if self._draft is None else self._draft.cut(gamma)

    def advance(self, tokens: Sequence[int], judged: int) -> bool:
        """Commit the tokens of the verdict on the tree, and drop the tree. Always returns True."""
        self._hash = self._hash.extended(tokens)
        self._tokens += tokens
        self._draft = None
        return True

    def clear(self) -> None:
        """Drop the tree."""
        self._draft = None
