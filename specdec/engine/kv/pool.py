"""The keys and values of every session, in pages within one budget in bytes that is never exceeded."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic

from specdec.engine.kv.store import KvStore, S
from specdec.errors import InternalError
from specdec.rules import blocks
from specdec.rules.blocks import BLOCK_TOKENS, chain
from specdec.rules.prefix import common_length


@dataclass(frozen=True, slots=True)
class KvMemory:
    """Use of the memory for keys and values, in bytes."""

    budget: int
    """Total bytes."""
    live: int
    """Bytes of running sessions."""
    cached: int
    """Bytes of ended sessions, kept for sessions with a common prefix and evicted when memory is needed."""

    def joined(self, other: "KvMemory") -> "KvMemory":
        """Return the use of this memory and another one."""
        return KvMemory(self.budget + other.budget, self.live + other.live, self.cached + other.cached)


class KvPool(Generic[S]):
    """The admitted sessions and their keys and values. A session takes more pages as it grows."""

    def __init__(self, store: KvStore[S], fingerprint: str = "") -> None:
        """`fingerprint` identifies the model that computes the keys and values."""
        self._store = store
        self._fingerprint = fingerprint
        self._sessions: dict[str, S] = {}
        self._cache = PrefixCache[S]()

    @property
    def capacity(self) -> int:
        """Number of tokens that one session could have with the whole budget."""
        return self._store.total * self._store.page_tokens

    @property
    def memory(self) -> KvMemory:
        page, free, cached = self._store.page_bytes, self._store.free, self._store.cached
        return KvMemory(self._store.total * page, (self._store.total - free - cached) * page, cached * page)

    def admit(self, session: str, limit: int, tokens: Sequence[int] = (), domain: str = "") -> bool:
        """Admit a session that begins with `tokens`, and reuse the keys and values of a prefix cached in its domain.

        The prefix is found by whole blocks. If a running session has these blocks, its following tokens are reused as
        well, as long as they are equal.

        There must be room for all of `tokens`, and for one more page for each admitted session, so that a new session
        does not take the memory that the others need next. The last of `tokens` is always computed again.

        Returns:
            False if there is no room now.

        Raises:
            InternalError: a session of this name is already admitted.
        """
        if session in self._sessions:
            raise InternalError(f"session {session} is admitted already")
        if self._pages_wanted(len(tokens), len(tokens)) > self._store.free + self._store.cached:
            return False
        root = blocks.root(self._fingerprint, domain)
        source, count = self._cache.find(blocks.chain(root, tokens[:-1]))
        begin = count * blocks.BLOCK_TOKENS
        if source is not None and not self._make_room(self._pages_wanted(len(tokens), begin), source):
            source, begin = None, 0
        if source is None and not self._make_room(self._pages_wanted(len(tokens), 0)):
            return False
        self._add(session, self._store.open(limit, root), source, self._in_common(source, begin, tokens[:-1]))
        self._store.extend(self[session], len(tokens))
        return True

    def find_prefix(self, tokens: Sequence[int], domain: str = "") -> tuple[S | None, int]:
        """The sequence with the longest prefix of `tokens` in whole blocks, and the length of that prefix.

        Call this between passes, when all drafts of each session have been judged.
        """
        for sequence in self._sessions.values():
            self._cache.seal(sequence)
        source, count = self._cache.find(blocks.chain(blocks.root(self._fingerprint, domain), tokens))
        return source, count * blocks.BLOCK_TOKENS

    def reserve(self, session: str, length: int) -> bool:
        """Take pages for the first `length` tokens of a session; False if there is no room now.

        Raises:
            InternalError: `length` is over the session's limit.
        """
        sequence = self[session]
        if length > sequence.limit:
            raise InternalError(f"session {session} is over its limit of {sequence.limit} tokens")
        store = self._store
        if store.missing(sequence, length) > 0:
            if store.needed(sequence, length) > store.free + store.cached:
                return False
            self._evict(lambda: store.missing(sequence, length) <= store.free)
            store.extend(sequence, length)
        return True

    def release(self, session: str) -> None:
        """End a session; its whole blocks stay cached until their memory is needed."""
        sequence = self[session]
        del self._sessions[session]
        needless = self._cache.retire(sequence)
        self._store.retire(sequence)
        for each in needless:
            self._store.drop(each)

    def seal(self, session: str) -> None:
        """Make the whole blocks of a session available to other sessions."""
        self._cache.seal(self[session])

    def truncate(self, session: str, length: int) -> None:
        """Keep only the first `length` tokens of a session, and stop sharing the blocks that it loses."""
        sequence = self[session]
        sequence.truncate(length)
        self._cache.unseal(sequence)

    def keep(self, session: str, base: int, path: Sequence[int]) -> None:
        """Keep the first `base` tokens of a session and one path of the tree after them."""
        sequence = self[session]
        sequence.keep(base, path)
        self._cache.unseal(sequence)

    def __getitem__(self, session: str) -> S:
        try:
            return self._sessions[session]
        except KeyError:
            raise InternalError(f"session {session} is not admitted") from None

    def _pages_wanted(self, tokens: int, shared: int) -> int:
        """Pages needed to admit a session of `tokens` tokens that shares the first `shared` with another."""
        return self._store.pages(tokens) - self._store.shared(shared) + len(self._sessions)

    def _in_common(self, source: S | None, begin: int, tokens: Sequence[int]) -> int:
        """Number of leading `tokens` that `source` has, at least `begin`; an ended sequence keeps whole blocks only."""
        if source is None or source in self._cache or source.tree is not None:
            return begin
        return begin + common_length(source.tokens[begin:], tokens[begin:])

    def _add(self, session: str, sequence: S, source: S | None, begin: int) -> None:
        """Add a session with the first `begin` tokens of `source`."""
        self._sessions[session] = sequence
        if source is not None:
            self._store.share(sequence, source, begin)
            sequence.grow(source.tokens[:begin])
            self._cache.inherit(sequence, source)

    def _make_room(self, pages: int, spared: S | None = None) -> bool:
        """Free `pages` pages without evicting `spared`; return False and evict nothing if that is impossible."""
        store = self._store
        pinned = store.pinned(spared) if spared is not None and spared in self._cache else 0
        if pages > store.free + store.cached - pinned:
            return False
        self._evict(lambda: pages <= store.free, spared)
        return True

    def _evict(self, enough: Callable[[], bool], spared: S | None = None) -> None:
        """Drop ended sequences, the least recently used first, until there is enough room."""
        for sequence in self._cache:
            if enough():
                break
            if sequence is not spared:
                self._cache.drop(sequence)
                self._store.drop(sequence)


class PrefixCache(Generic[S]):
    """Finds the sequence with the longest common prefix."""

    def __init__(self) -> None:
        self._by_hash: dict[bytes, list[S]] = {}
        """The sequences that share each sealed block."""
        self._ended: dict[S, None] = {}
        """Ended sequences, the least recently used first."""

    def __contains__(self, sequence: object) -> bool:
        return sequence in self._ended

    def __iter__(self) -> Iterator[S]:
        """The ended sequences, the least recently used first."""
        return iter(tuple(self._ended))

    def find(self, hashes: Sequence[bytes]) -> tuple[S | None, int]:
        """The sequence with the longest prefix of a chain of block hashes, and the number of its blocks."""
        for count in range(len(hashes), 0, -1):
            if found := self._by_hash.get(hashes[count - 1]):
                sequence = found[-1]
                if sequence in self._ended:
                    self._ended[sequence] = self._ended.pop(sequence)
                return sequence, count
        return None, 0

    def seal(self, sequence: S) -> None:
        """Share the whole blocks of a sequence with others; a sequence with a tree shares no new blocks."""
        done = len(sequence.sealed) * BLOCK_TOKENS
        if sequence.tree is not None or sequence.length - done < BLOCK_TOKENS:
            return
        for block in chain(sequence.end_hash, sequence.tokens[done:]):
            self._by_hash.setdefault(block, []).append(sequence)
            sequence.sealed.append(block)

    def unseal(self, sequence: S) -> None:
        """Stop sharing the blocks that a sequence no longer has."""
        whole = sequence.length // BLOCK_TOKENS
        for block in sequence.sealed[whole:]:
            sharing = self._by_hash[block]
            sharing.remove(sequence)
            if not sharing:
                del self._by_hash[block]
        del sequence.sealed[whole:]

    def inherit(self, sequence: S, source: S) -> None:
        """Share the sealed blocks that a new sequence has taken from `source`."""
        for block in source.sealed[: sequence.length // BLOCK_TOKENS]:
            self._by_hash[block].append(sequence)
            sequence.sealed.append(block)

    def retire(self, sequence: S) -> list[S]:
        """Cache the blocks of a sequence that has ended.

        Returns:
            Redundant sequences, which are dropped from the cache: this one if another has its blocks, else ended ones
            whose blocks it has.
        """
        self.seal(sequence)
        if not sequence.sealed or len(self._by_hash[sequence.sealed[-1]]) > 1:
            self.drop(sequence)
            return [sequence]
        blocks = set(sequence.sealed)
        needless = [other for other in self._ended if other.sealed[-1] in blocks]
        for other in needless:
            self.drop(other)
        self._ended[sequence] = None
        return needless

    def drop(self, sequence: S) -> None:
        """Remove a sequence from the cache and clear its tokens."""
        sequence.tokens.clear()
        self.unseal(sequence)
        self._ended.pop(sequence, None)
