"""The keys and values of every session, in pages under one byte budget that is never passed."""

from collections.abc import Sequence
from dataclasses import dataclass

from specdec import blocks
from specdec.engine.kv_layout import KvLayout
from specdec.engine.prefix_cache import PrefixCache
from specdec.engine.slab import Slab
from specdec.errors import InternalError


@dataclass(frozen=True, slots=True)
class KvMemory:
    """Where the budget is; bytes."""

    budget: int
    live: int
    """Of running sessions."""
    cached: int
    """Of ended sessions, for those that begin as they did; given up when memory is needed."""


class KvPool:
    """Sessions and their slabs. A session is charged for the pages it needs, and grows page by page up to its limit.

    Where memory is filled lazily, a slab's address space is that of its limit and its pages lie where they will stay,
    so that nothing is copied when it grows. Elsewhere a session is charged for its limit at once.
    """

    def __init__(self, layout: KvLayout, budget: int, fingerprint: str = "") -> None:
        """`fingerprint` of the model whose keys and values these are."""
        self._layout = layout
        self._fingerprint = fingerprint
        self._total = self._free = budget // layout.page_bytes
        self._slabs: dict[str, Slab] = {}
        self._cache = PrefixCache()

    @property
    def capacity(self) -> int:
        """Tokens that the whole budget holds for one session."""
        return self._total * self._layout.page_tokens

    @property
    def memory(self) -> KvMemory:
        """Where the budget is now."""
        page, cached = self._layout.page_bytes, self._cache.pages
        return KvMemory(self._total * page, (self._total - self._free - cached) * page, cached * page)

    def admit(self, session: str, limit: int, tokens: Sequence[int] = (), domain: str = "") -> bool:
        """Let a session in that begins with `tokens`; it has the keys and values of a known beginning of them at once.

        There must be room for all of `tokens`, and for one more page of each session that is in already, so that a
        session does not come in only to take what the others need next. The last of `tokens` is always left to compute.

        Returns:
            False when there is no room now.
        """
        if session in self._slabs:
            raise InternalError(f"session {session} is admitted already")
        pages = self._layout.pages(len(tokens) if self._layout.is_lazy else limit)
        wanted = pages + (len(self._slabs) if self._layout.is_lazy else 0)
        if wanted > self._free + self._cache.pages:
            return False
        root = blocks.root(self._fingerprint, domain)
        source, count = self._cache.find(blocks.chain(root, tokens[:-1]))
        if not self._make_room(wanted, source):
            source = None
            self._make_room(wanted)
        slab = Slab(*self._layout.slab(self._layout.pages(limit)), limit, root, pages)
        if source is not None:
            slab.take(source, count)
            self._cache.seal(slab)
        self._free -= pages
        self._slabs[session] = slab
        return True

    def holder(self, tokens: Sequence[int], domain: str = "") -> tuple[Slab | None, int]:
        """Who has the longest beginning of `tokens` in whole blocks, and its length.

        To be asked between passes, when what a session has has stood the verdict of the last one.
        """
        for slab in self._slabs.values():
            self._cache.seal(slab)
        source, count = self._cache.find(blocks.chain(blocks.root(self._fingerprint, domain), tokens))
        return source, count * blocks.BLOCK_TOKENS

    def reserve(self, session: str, length: int) -> bool:
        """Have pages for the first `length` tokens of a session; False when there is no room now.

        Raises:
            InternalError: it is more than the session's limit.
        """
        slab = self[session]
        if length > slab.limit:
            raise InternalError(f"session {session} is over its limit of {slab.limit} tokens")
        more = self._layout.pages(length) - slab.pages
        if more > 0:
            if not self._make_room(more):
                return False
            slab.pages += more
            self._free -= more
        return True

    def release(self, session: str) -> None:
        """End a session; its whole blocks stay for others while no one needs the memory."""
        slab = self[session]
        del self._slabs[session]
        for needless in self._cache.retire(slab):
            self._free += needless.pages

    def seal(self, session: str) -> None:
        """Let other sessions begin with the whole blocks that this one has."""
        self._cache.seal(self[session])

    def truncate(self, session: str, length: int) -> None:
        """See `Slab.truncate`."""
        slab = self[session]
        slab.truncate(length)
        self._cache.unseal(slab)

    def keep(self, session: str, base: int, path: Sequence[int]) -> None:
        """See `Slab.keep`."""
        slab = self[session]
        slab.keep(base, path)
        self._cache.unseal(slab)

    def __getitem__(self, session: str) -> Slab:
        try:
            return self._slabs[session]
        except KeyError:
            raise InternalError(f"session {session} is not admitted") from None

    def _make_room(self, pages: int, sparing: Slab | None = None) -> bool:
        """Give up slabs of ended sessions, the one unused for longest first, until `pages` are free."""
        spared = sparing.pages if sparing is not None and sparing in self._cache else 0
        if pages > self._free + self._cache.pages - spared:
            return False
        for slab in self._cache:
            if pages <= self._free:
                break
            if slab is not sparing:
                self._cache.drop(slab)
                self._free += slab.pages
        return True
