"""Suffix decoding (arXiv 2411.04975): drafts the continuation of the longest known suffix of the sequence."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specdec.sources.context_counts import Context, Keys, Match, RecentCounts, keys

_LENGTHS = (16, 8, 4, 2, 1)
"""Context lengths to count. Each but the last takes about 100 bytes per token."""
_KEEP, _KEEP_SHARED = 0.98, 0.999
"""Decay factors of earlier guesses after each guess: within one sequence, and over all sequences."""
_RIGHT, _TRIED = 1.4, 2.0
"""Prior: number of right guesses, and number of guesses."""
_WEIGHT = 8.0
"""Weight of the rates from other sequences, in guesses of the sequence itself."""


class SuffixStore:
    """Tokens generated in earlier sequences, separate for each domain: one tenant's requests with one cache salt.

    Domains share nothing: one domain's entries affect neither the results nor the lookup times of another. Beyond the
    maximum number of domains, the least recently opened domain is dropped.
    """

    def __init__(self, window: int, domains: int) -> None:
        """Create an empty store.

        Args:
            window: minimum number of last tokens that a domain keeps; at most twice as many are kept.
            domains: maximum number of domains.
        """
        self._window = window
        self._limit = domains
        self._domains: OrderedDict[str, RecentCounts] = OrderedDict()

    def counts(self, domain: str) -> RecentCounts:
        """Return the counts of a domain."""
        counts = self._domains.setdefault(domain, RecentCounts(self._window))
        self._domains.move_to_end(domain)
        if len(self._domains) > self._limit:
            self._domains.popitem(last=False)
        return counts


class GuessRates:
    """Share of right guesses by context length, over all sequences that use this object."""

    def __init__(self) -> None:
        self._right = dict.fromkeys(_LENGTHS, _RIGHT)
        self._tried = dict.fromkeys(_LENGTHS, _TRIED)

    def shares(self) -> dict[int, float]:
        """Return the share of right guesses for each context length."""
        return {length: self._right[length] / self._tried[length] for length in _LENGTHS}

    def observe(self, length: int, right: bool) -> None:
        """Record whether the guess of a generated token was right."""
        self._tried[length] = self._tried[length] * _KEEP_SHARED + 1.0
        self._right[length] = self._right[length] * _KEEP_SHARED + right


@dataclass(frozen=True, slots=True)
class GuessTerms:
    """Cost and hit rates from which `Suffix` chooses its draft length."""

    price: Callable[[], float]
    """Returns the current cost of one drafted token, in committed tokens."""
    rates: GuessRates
    """Hit rates of guesses in other sequences; this sequence updates them."""


class Suffix:
    """A DraftSource over its own sequence and the store of its domain.

    The longer context wins. On a tie the sequence itself wins, because it holds the newest version of an edited text.
    The probability of a guess is the hit rate of guesses with the same context length, drafted or not. Its prior is the
    rate in other sequences. A draft ends when the probability that all of it is accepted falls below a token's cost.
    """

    def __init__(self, stored: RecentCounts, known: int, window: int, terms: GuessTerms) -> None:
        """Create a source.

        Args:
            stored: counts of the domain; tokens generated here are added to them.
            known: number of leading tokens that were not generated here.
            window: minimum number of own last tokens to count; at most twice as many are counted.
        """
        self._stored = stored
        self._own = RecentCounts(window)
        self._known = known
        self._terms = terms
        self._end: Context = ()
        self._contexts: Keys = []
        """Contexts at the end of the sequence."""
        self._match: Match | None = None
        """Guess of the next token."""
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
        """Update the hit rates with the guess made for this token."""
        match = self._match
        if match is None:
            return
        right = match.token == token
        self._tried[match.length] = self._tried[match.length] * _KEEP + 1.0
        self._right[match.length] = self._right[match.length] * _KEEP + right
        if self._read >= self._known:
            self._terms.rates.observe(match.length, right)
