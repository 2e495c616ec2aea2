"""Which slabs hold which blocks: those of running sessions, and those of ended ones until their memory is needed."""

from collections.abc import Iterator, Sequence

from specdec.blocks import BLOCK_TOKENS, chain
from specdec.engine.slab import Slab


class PrefixCache:
    """Finds the slab that shares the longest prefix with a new session."""

    def __init__(self) -> None:
        self._holders: dict[bytes, list[Slab]] = {}
        self._ended: dict[Slab, None] = {}
        """In the order of last use, the longest ago first."""

    @property
    def pages(self) -> int:
        """Pages of the slabs of ended sessions."""
        return sum(slab.pages for slab in self._ended)

    def __contains__(self, slab: object) -> bool:
        return slab in self._ended

    def __iter__(self) -> Iterator[Slab]:
        """Slabs of ended sessions, the one to give up first first."""
        return iter(tuple(self._ended))

    def find(self, hashes: Sequence[bytes]) -> tuple[Slab | None, int]:
        """A slab with the longest beginning of a chain of blocks, and how many blocks that is."""
        for count in range(len(hashes), 0, -1):
            if holders := self._holders.get(hashes[count - 1]):
                self._use(holders[-1])
                return holders[-1], count
        return None, 0

    def seal(self, slab: Slab) -> None:
        """Let others take the whole blocks that a slab has by now; of a tree nothing can be taken."""
        done = len(slab.sealed) * BLOCK_TOKENS
        if slab.tree is not None or slab.length - done < BLOCK_TOKENS:
            return
        for block in chain(slab.end_hash, slab.tokens[done:]):
            self._holders.setdefault(block, []).append(slab)
            slab.sealed.append(block)

    def unseal(self, slab: Slab) -> None:
        """Take back the blocks that a slab has no longer."""
        whole = slab.length // BLOCK_TOKENS
        for block in slab.sealed[whole:]:
            holders = self._holders[block]
            holders.remove(slab)
            if not holders:
                del self._holders[block]
        del slab.sealed[whole:]

    def retire(self, slab: Slab) -> list[Slab]:
        """Keep the blocks of a session that has ended.

        Returns:
            The slabs that nobody needs any more: this one if another has its blocks, else those that it makes needless.
        """
        self.seal(slab)
        if not slab.sealed or len(self._holders[slab.sealed[-1]]) > 1:
            self.drop(slab)
            return [slab]
        blocks = set(slab.sealed)
        needless = [other for other in self._ended if other.sealed[-1] in blocks]
        for other in needless:
            self.drop(other)
        self._ended[slab] = None
        return needless

    def drop(self, slab: Slab) -> None:
        """Forget a slab."""
        slab.tokens.clear()
        self.unseal(slab)
        self._ended.pop(slab, None)

    def _use(self, slab: Slab) -> None:
        if slab in self._ended:
            self._ended[slab] = self._ended.pop(slab)
