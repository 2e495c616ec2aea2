"""Who holds which blocks: running sessions, and ended ones until their memory is needed."""

from collections.abc import Iterator, Sequence
from typing import Generic

from specdec.engine.kv_store import H
from specdec.rules.blocks import BLOCK_TOKENS, chain


class PrefixCache(Generic[H]):
    """Finds who shares the longest prefix with a new session."""

    def __init__(self) -> None:
        self._holders: dict[bytes, list[H]] = {}
        self._ended: dict[H, None] = {}
        """In the order of last use, the longest ago first."""

    def __contains__(self, holding: object) -> bool:
        return holding in self._ended

    def __iter__(self) -> Iterator[H]:
        """What ended sessions hold, the one to give up first first."""
        return iter(tuple(self._ended))

    def find(self, hashes: Sequence[bytes]) -> tuple[H | None, int]:
        """A holding with the longest beginning of a chain of blocks, and how many blocks that is."""
        for count in range(len(hashes), 0, -1):
            if holders := self._holders.get(hashes[count - 1]):
                self._use(holders[-1])
                return holders[-1], count
        return None, 0

    def seal(self, holding: H) -> None:
        """Let others take the whole blocks that a holding has by now; of a tree nothing can be taken."""
        done = len(holding.sealed) * BLOCK_TOKENS
        if holding.tree is not None or holding.length - done < BLOCK_TOKENS:
            return
        for block in chain(holding.end_hash, holding.tokens[done:]):
            self._holders.setdefault(block, []).append(holding)
            holding.sealed.append(block)

    def unseal(self, holding: H) -> None:
        """Take back the blocks that a holding has no longer."""
        whole = holding.length // BLOCK_TOKENS
        for block in holding.sealed[whole:]:
            holders = self._holders[block]
            holders.remove(holding)
            if not holders:
                del self._holders[block]
        del holding.sealed[whole:]

    def inherit(self, holding: H, source: H) -> None:
        """Let others take the sealed blocks that a new holding has from another."""
        for block in source.sealed[: holding.length // BLOCK_TOKENS]:
            self._holders[block].append(holding)
            holding.sealed.append(block)

    def retire(self, holding: H) -> list[H]:
        """Keep the blocks of a session that has ended.

        Returns:
            Those that nobody needs any more: this one if another has its blocks, else those that it makes needless.
        """
        self.seal(holding)
        if not holding.sealed or len(self._holders[holding.sealed[-1]]) > 1:
            self.drop(holding)
            return [holding]
        blocks = set(holding.sealed)
        needless = [other for other in self._ended if other.sealed[-1] in blocks]
        for other in needless:
            self.drop(other)
        self._ended[holding] = None
        return needless

    def drop(self, holding: H) -> None:
        """Forget a holding."""
        holding.tokens.clear()
        self.unseal(holding)
        self._ended.pop(holding, None)

    def _use(self, holding: H) -> None:
        if holding in self._ended:
            self._ended[holding] = self._ended.pop(holding)
