"""Drafts from a text that the caller expects: OpenAI's `prediction`."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence

_LONGEST = 4
"""Maximum length, in tokens, of the run that locates the output in the prediction again."""
_NEAR = 32
"""Maximum distance ahead, in tokens, at which a single matching token locates the prediction again."""
_TRUST = 2
"""Draft tokens allowed for each token that has matched since the position was found again."""


class Prediction:
    """A DraftSource that follows the predicted text and finds its position again after the output deviates.

    A position found again may match by chance, so drafts start short and grow while the output follows the prediction.
    """

    def __init__(self, prediction: Sequence[int], prompt: int) -> None:
        """Skip the first `prompt` tokens: the prediction is of the output only."""
        self._prediction = tuple(prediction)
        self._unread = prompt
        self._place: int | None = 0
        """Position of the next expected token in the prediction; None while the output deviates."""
        self._left = 0
        """Position at which the output last deviated from the prediction."""
        self._followed: int | None = None
        """Number of tokens that confirm the position; None before the first deviation."""
        self._end: tuple[int, ...] = ()
        self._runs: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
        """End positions of each short run in the prediction, ascending."""
        for end in range(1, len(self._prediction) + 1):
            for size in range(1, min(_LONGEST, end) + 1):
                self._runs[self._prediction[end - size : end]].append(end)

    def read(self, tokens: Sequence[int]) -> None:
        output = tokens[self._unread :]
        self._unread = max(0, self._unread - len(tokens))
        for token in output:
            self._end = (*self._end[-_LONGEST + 1 :], token)
            if self._place is not None and self._prediction[self._place : self._place + 1] == (token,):
                self._place += 1
                if self._followed is not None:
                    self._followed += 1
                continue
            self._left = self._left if self._place is None else self._place
            self._place = self._found()

    def draft(self, drafts: Sequence[int], most: int) -> list[int]:
        place = self._place
        if place is None or self._prediction[place : place + len(drafts)] != tuple(drafts):
            return []
        trusted = most if self._followed is None else max(0, _TRUST * self._followed - len(drafts))
        start = place + len(drafts)
        return list(self._prediction[start : start + min(most, trusted)])

    def _found(self) -> int | None:
        """Return the nearest position after the deviation whose preceding tokens match the end of the output. Fall back
        to a position before the deviation.

        A single token is matched only a short distance ahead; elsewhere it would match by chance.
        """
        for size in range(min(_LONGEST, len(self._end)), 0, -1):
            places = self._runs.get(self._end[-size:], [])
            later, self._followed = bisect_left(places, self._left + 1), size
            if later < len(places) and (size > 1 or places[later] - self._left <= _NEAR):
                return places[later]
            if later and size > 1:
                return places[later - 1]
        return None
