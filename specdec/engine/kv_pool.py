"""The keys and values of every session, in pages under one byte budget that is never passed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic

from specdec.engine.kv_store import H, KvStore
from specdec.engine.prefix_cache import PrefixCache
from specdec.errors import InternalError
from specdec.rules import blocks


@dataclass(frozen=True, slots=True)
class KvMemory:
    """Where the budget is; bytes."""

    budget: int
    live: int
    """Of running sessions."""
    cached: int
    """Of ended sessions, for those that begin as they did; given up when memory is needed."""


class KvPool(Generic[H]):
    """Sessions and what they hold. A session is charged for the pages it needs, and takes more of them as it grows."""

    def __init__(self, store: KvStore[H], fingerprint: str = "") -> None:
        """`fingerprint` of the model whose keys and values these are."""
        self._store = store
        self._fingerprint = fingerprint
        self._sessions: dict[str, H] = {}
        self._cache = PrefixCache[H]()

    @property
    def capacity(self) -> int:
        """Tokens that the whole budget holds for one session."""
        return self._store.total * self._store.page_tokens

    @property
    def memory(self) -> KvMemory:
        """Where the budget is now."""
        page, free, cached = self._store.page_bytes, self._store.free, self._store.cached
        return KvMemory(self._store.total * page, (self._store.total - free - cached) * page, cached * page)

    def admit(self, session: str, limit: int, tokens: Sequence[int] = (), domain: str = "") -> bool:
        """Let a session in that begins with `tokens`; it has the keys and values of a known beginning of them at once.

        There must be room for all of `tokens`, and for one more page of each session that is in already, so that a
        session does not come in only to take what the others need next. The last of `tokens` is always left to compute.

        Returns:
            False when there is no room now.
        """
        self._refuse_known(session)
        if self._wanted(len(tokens), len(tokens)) > self._store.free + self._store.cached:
            return False
        root = blocks.root(self._fingerprint, domain)
        source, count = self._cache.find(blocks.chain(root, tokens[:-1]))
        begin = count * blocks.BLOCK_TOKENS
        if source is not None and not self._make_room(self._wanted(len(tokens), begin), source):
            source, begin = None, 0
        if source is None and not self._make_room(self._wanted(len(tokens), 0)):
            return False
        self._seat(session, self._store.open(limit, root), source, begin)
        self._store.extend(self[session], len(tokens))
        return True

    def fork(self, session: str, new: str, limit: int) -> bool:
        """Let a session in that has all the tokens of another and grows apart from it.

        Returns:
            False when there is no room now.

        Raises:
            InternalError: the other one has kept no path of its tree, or `limit` is below its length.
        """
        self._refuse_known(new)
        source = self[session]
        if source.tree is not None or limit < source.length:
            raise InternalError(f"session {session} of {source.length} tokens cannot be forked to one of {limit}")
        if not self._make_room(self._wanted(source.length, source.length)):
            return False
        self._seat(new, self._store.open(limit, source.root), source, source.length)
        self._store.extend(self[new], source.length)
        return True

    def holder(self, tokens: Sequence[int], domain: str = "") -> tuple[H | None, int]:
        """Who has the longest beginning of `tokens` in whole blocks, and its length.

        To be asked between passes, when what a session has has stood the verdict of the last one.
        """
        for holding in self._sessions.values():
            self._cache.seal(holding)
        source, count = self._cache.find(blocks.chain(blocks.root(self._fingerprint, domain), tokens))
        return source, count * blocks.BLOCK_TOKENS

    def reserve(self, session: str, length: int) -> bool:
        """Have pages for the first `length` tokens of a session; False when there is no room now.

        Raises:
            InternalError: it is more than the session's limit.
        """
        holding = self[session]
        if length > holding.limit:
            raise InternalError(f"session {session} is over its limit of {holding.limit} tokens")
        store = self._store
        if store.missing(holding, length) > 0:
            if store.needed(holding, length) > store.free + store.cached:
                return False
            self._give_up(lambda: store.missing(holding, length) <= store.free)
            store.extend(holding, length)
        return True

    def release(self, session: str) -> None:
        """End a session; its whole blocks stay for others while no one needs the memory."""
        holding = self[session]
        del self._sessions[session]
        needless = self._cache.retire(holding)
        self._store.retire(holding)
        for each in needless:
            self._store.drop(each)

    def seal(self, session: str) -> None:
        """Let other sessions begin with the whole blocks that this one has."""
        self._cache.seal(self[session])

    def truncate(self, session: str, length: int) -> None:
        """See `Holding.truncate`."""
        holding = self[session]
        holding.truncate(length)
        self._cache.unseal(holding)

    def keep(self, session: str, base: int, path: Sequence[int]) -> None:
        """See `Holding.keep`."""
        holding = self[session]
        holding.keep(base, path)
        self._cache.unseal(holding)

    def __getitem__(self, session: str) -> H:
        try:
            return self._sessions[session]
        except KeyError:
            raise InternalError(f"session {session} is not admitted") from None

    def _refuse_known(self, session: str) -> None:
        if session in self._sessions:
            raise InternalError(f"session {session} is admitted already")

    def _wanted(self, tokens: int, shared: int) -> int:
        """Pages that must be free for a session of so many tokens to come in, the first `shared` from another."""
        return self._store.pages(tokens) - self._store.shared(shared) + len(self._sessions)

    def _seat(self, session: str, holding: H, source: H | None, begin: int) -> None:
        """Let a session in with the first `begin` tokens of another."""
        self._sessions[session] = holding
        if source is not None:
            self._store.share(holding, source, begin)
            holding.grow(source.tokens[:begin])
            self._cache.inherit(holding, source)

    def _make_room(self, pages: int, sparing: H | None = None) -> bool:
        """Have so many pages free, without giving up what `sparing` has; False when there are not as many."""
        store = self._store
        spared = store.pinned(sparing) if sparing is not None and sparing in self._cache else 0
        if pages > store.free + store.cached - spared:
            return False
        self._give_up(lambda: pages <= store.free, sparing)
        return True

    def _give_up(self, enough: Callable[[], bool], sparing: H | None = None) -> None:
        """Give up what ended sessions have, the one unused for longest first, until there is enough."""
        for holding in self._cache:
            if enough():
                break
            if holding is not sparing:
                self._cache.drop(holding)
                self._store.drop(holding)
