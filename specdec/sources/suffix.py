"""Suffix decoding (arXiv 2411.04975): what followed the longest known end of the sequence, here or in earlier ones."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specdec.sources.context_counts import Context, Keys, Match, RecentCounts, keys

_LENGTHS = (16, 8, 4, 2, 1)
"""Context lengths that are counted; each but the last takes about 100 bytes a token."""
_KEEP, _KEEP_SHARED = 0.98, 0.999
"""Factors by which each guess lowers the weight of those before, in one sequence and over all."""
_RIGHT, _TRIED = 1.4, 2.0
"""Right ones of how many guesses are assumed before anything is seen."""
_WEIGHT = 8.0
"""As many guesses of a sequence's own are worth what was seen in others."""


class SuffixStore:
    """What was generated in earlier sequences, apart for each domain: one tenant's requests of one salt.

    Domains share nothing: what one has stored cannot change what another one finds, nor how long it takes. When there
    are too many domains, the one that was opened longest ago is forgotten as a whole.
    """

    def __init__(self, window: int, domains: int) -> None:
        """Make an empty store.

        Args:
            window: how many of its last tokens a domain keeps at least; at most twice as many are kept.
            domains: most domains.
        """
        self._window = window
        self._limit = domains
        self._domains: OrderedDict[str, RecentCounts] = OrderedDict()

    def counts(self, domain: str) -> RecentCounts:
        """The counts of a domain."""
        counts = self._domains.setdefault(domain, RecentCounts(self._window))
        self._domains.move_to_end(domain)
        if len(self._domains) > self._limit:
            self._domains.popitem(last=False)
        return counts


class GuessRates:
    """How often guesses by contexts of each length were right, over all sequences that are taken to be alike."""

    def __init__(self) -> None:
        self._right = dict.fromkeys(_LENGTHS, _RIGHT)
        self._tried = dict.fromkeys(_LENGTHS, _TRIED)

    def shares(self) -> dict[int, float]:
        """The share of right guesses of each length."""
        return {length: self._right[length] / self._tried[length] for length in _LENGTHS}

    def observe(self, length: int, right: bool) -> None:
        """Learn from a guess of a token that was generated."""
        self._tried[length] = self._tried[length] * _KEEP_SHARED + 1.0
        self._right[length] = self._right[length] * _KEEP_SHARED + right


@dataclass(frozen=True, slots=True)
class GuessTerms:
    """By what a source decides how much it drafts that knows how likely its guesses are."""

    price: Callable[[], float]
    """Reads what one drafted token costs now, in tokens that are committed."""
    rates: GuessRates
    """How often such guesses were right in other sequences; it learns from this one."""


class Suffix:
    """A DraftSource that reads its own sequence and the store of its domain.

    The longer context wins; of equal ones, that of the sequence itself, which has the newest version of a text that is
    edited. How likely a guess is, is learnt from how often guesses by contexts of its length were right, whether they
    were drafted or not: here, and before that in other sequences. A draft ends where the chance that all of it is
    accepted is less than its next token costs.
    """

    def __init__(self, stored: RecentCounts, known: int, window: int, terms: GuessTerms) -> None:
        """Make a source.

        Args:
            stored: the counts of the domain, to which tokens that are generated here are added.
            known: how many tokens are read before those.
            window: how many of its own last tokens are counted at least; at most twice as many are.
        """
        self._stored = stored
        self._own = RecentCounts(window)
        self._known = known
        self._terms = terms
        self._end: Context = ()
        self._contexts: Keys = []
        """Those that end where the sequence ends."""
        self._match: Match | None = None
        """The guess of the next token."""
        self._read = 0
        self._right = {length: _WEIGHT * rate for length, rate in terms.rates.shares().items()}
        self._tried = dict.fromkeys(_LENGTHS, _WEIGHT)

    def read(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._judge(token)
            self._own.add(self._contexts, token)
            if self._read >= self._known:
                self._stored.add(self._contexts, token)
            self._end = (*self._end[-_LENGTHS[0] + 1 :], token)
            self._contexts = keys(self._end, _LENGTHS)
            self._match = self._find(self._contexts)
            self._read += 1

    def draft(self, drafts: Sequence[int], most: int) -> list[int]:
        end, guesses, chance, price = (*self._end, *drafts)[-_LENGTHS[0] :], list[int](), 1.0, self._terms.price()
        match = self._find(keys(end, _LENGTHS)) if drafts else self._match
        while match is not None and len(guesses) < most:
            chance *= self._right[match.length] / self._tried[match.length]
            if chance < price:
                break
            guesses.append(match.token)
            end = (*end[-_LENGTHS[0] + 1 :], match.token)
            match = self._find(keys(end, _LENGTHS))
        return guesses

    def _find(self, contexts: Keys) -> Match | None:
        own, stored = self._own.find(contexts), self._stored.find(contexts)
        if own is None or stored is None:
            return own or stored
        return own if own.length >= stored.length else stored

    def _judge(self, token: int) -> None:
        """Learn how good the guess of this token would have been."""
        match = self._match
        if match is None:
            return
        right = match.token == token
        self._tried[match.length] = self._tried[match.length] * _KEEP + 1.0
        self._right[match.length] = self._right[match.length] * _KEEP + right
        if self._read >= self._known:
            self._terms.rates.observe(match.length, right)
