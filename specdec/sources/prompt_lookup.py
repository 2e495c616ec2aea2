"""Prompt lookup, as in transformers and vLLM: drafts the continuation of an earlier occurrence of the last tokens."""

from collections.abc import Sequence


class PromptLookup:
    """A DraftSource that continues the latest earlier occurrence of the longest matching suffix of the sequence.

    An index of all short token runs makes the cost of a guess independent of the sequence length.
    """

    def __init__(self, longest: int, window: int) -> None:
        """Create an empty source.

        Args:
            longest: maximum length of the suffix to match, in tokens.
            window: minimum number of last tokens to search; at most twice as many are searched.
        """
        self._longest = longest
        self._window = window
        self._tokens: list[int] = []
        self._forgotten = 0
        """Number of tokens dropped from the start of the sequence."""
        self._places: dict[int, int] = {}
        """End of each token run's latest occurrence, by hash of the run, counted from the sequence's start."""

    def read(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            # A run is indexed once the token after it is known, so the end of the sequence never matches itself.
            for run in self._runs(self._tokens[-self._longest :]):
                self._places[run] = self._forgotten + len(self._tokens)
            self._tokens.append(token)
        if len(self._tokens) > 2 * self._window:
            self._forget()

    def draft(self, drafts: Sequence[int], most: int) -> list[int]:
        end, guesses = [*self._tokens[-self._longest :], *drafts][-self._longest :], list[int]()
        while len(guesses) < most and (place := self._find(end)) is not None:
            guesses.append(self._tokens[place - self._forgotten])
            end = [*end, guesses[-1]][-self._longest :]
        return guesses

    def _find(self, end: Sequence[int]) -> int | None:
        return next((self._places[run] for run in reversed(self._runs(end)) if run in self._places), None)

    @staticmethod
    def _runs(end: Sequence[int]) -> list[int]:
        """Return the hashes of the suffixes of `end`, shortest first."""
        return [hash(tuple(end[-size:])) for size in range(1, len(end) + 1)]

    def _forget(self) -> None:
        gone = len(self._tokens) - self._window
        del self._tokens[:gone]
        self._forgotten += gone
        self._places = {run: place for run, place in self._places.items() if place >= self._forgotten}
