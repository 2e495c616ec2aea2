"""Which sequences have which blocks: running sequences, and ended ones until their memory is needed."""

from collections.abc import Iterator, Sequence
from typing import Generic

from specdec.engine.kv.store import S
from specdec.rules.blocks import BLOCK_TOKENS, chain


class PrefixCache(Generic[S]):
    """Finds the sequence that has the longest prefix in common with a new one."""

    def __init__(self) -> None:
        self._by_hash: dict[bytes, list[S]] = {}
        """The sequences that share each sealed block."""
        self._ended: dict[S, None] = {}
        """Ended sequences in the order of their last use, the least recent first."""

    def __contains__(self, sequence: object) -> bool:
        return sequence in self._ended

    def __iter__(self) -> Iterator[S]:
        """The ended sequences, the least recently used first."""
        return iter(tuple(self._ended))

    def find(self, hashes: Sequence[bytes]) -> tuple[S | None, int]:
        """A sequence with the longest beginning of a chain of blocks, and the number of those blocks."""
        for count in range(len(hashes), 0, -1):
            if found := self._by_hash.get(hashes[count - 1]):
                sequence = found[-1]
                if sequence in self._ended:
                    self._ended[sequence] = self._ended.pop(sequence)
                return sequence, count
        return None, 0

    def seal(self, sequence: S) -> None:
        """Let others share the whole blocks that a sequence has; a sequence with a tree shares no new ones."""
        done = len(sequence.sealed) * BLOCK_TOKENS
        if sequence.tree is not None or sequence.length - done < BLOCK_TOKENS:
            return
        for block in chain(sequence.end_hash, sequence.tokens[done:]):
            self._by_hash.setdefault(block, []).append(sequence)
            sequence.sealed.append(block)

    def unseal(self, sequence: S) -> None:
        """Stop sharing the blocks that a sequence does not have any more."""
        whole = sequence.length // BLOCK_TOKENS
        for block in sequence.sealed[whole:]:
            sharing = self._by_hash[block]
            sharing.remove(sequence)
            if not sharing:
                del self._by_hash[block]
        del sequence.sealed[whole:]

    def inherit(self, sequence: S, source: S) -> None:
        """Let others share the sealed blocks that a new sequence has from another."""
        for block in source.sealed[: sequence.length // BLOCK_TOKENS]:
            self._by_hash[block].append(sequence)
            sequence.sealed.append(block)

    def retire(self, sequence: S) -> list[S]:
        """Keep the blocks of a sequence that has ended.

        Returns:
            Sequences that are not needed any more: this one if another has its blocks, else ended ones whose blocks it
            has. They are dropped from the cache.
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
