"""Prompt lookup, as in transformers and vLLM: what followed when the last few tokens came before."""

from collections.abc import Sequence


class PromptLookup:
    """A DraftSource that goes on from the latest earlier place of the longest end of the sequence.

    Places are found in an index of all short runs of tokens, so a guess costs the same in a long sequence.
    """

    def __init__(self, longest: int, window: int) -> None:
        """Make an empty one.

        Args:
            longest: most tokens of an end that is looked for.
            window: how many of the last tokens are searched at least; at most twice as many are.
        """
        self._longest = longest
        self._window = window
        self._tokens: list[int] = []
        self._forgotten = 0
        """Tokens of the sequence that lie before `_tokens`."""
        self._places: dict[int, int] = {}
        """Where the latest occurrence of each run of tokens ends, by its hash, counted from the sequence's start."""

    def read(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            # A run is entered when the token behind it is known, so the end of the sequence never finds itself.
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
        """The hashes of the ends of `end`, shortest first."""
        return [hash(tuple(end[-size:])) for size in range(1, len(end) + 1)]

    def _forget(self) -> None:
        gone = len(self._tokens) - self._window
        del self._tokens[:gone]
        self._forgotten += gone
        self._places = {run: place for run, place in self._places.items() if place >= self._forgotten}
