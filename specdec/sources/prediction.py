"""A text that the caller expects, as a draft: OpenAI's `prediction`."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence

_LONGEST = 4
"""Tokens of the longest run by which the place in the prediction is found again."""
_NEAR = 32
"""How far ahead a single equal token is taken for the place where the prediction goes on."""
_TRUST = 2
"""Drafts for each token by which the place was found again, or which has followed since."""


class Prediction:
    """A DraftSource that follows the predicted text, and finds its place again where the output left it.

    A place that was found again may be found by chance, so its first drafts are few, and more as the output follows.
    """

    def __init__(self, prediction: Sequence[int], prompt: int) -> None:
        """`prompt` is how many tokens are read before the output, which the prediction is of, begins."""
        self._prediction = tuple(prediction)
        self._unread = prompt
        self._place: int | None = 0
        """Where the prediction goes on; None while the output has left it."""
        self._left = 0
        """Where the output left the prediction."""
        self._followed: int | None = None
        """Tokens that say that the place is right; None before the output has left the prediction."""
        self._end: tuple[int, ...] = ()
        self._runs: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
        """Where each short run of the prediction ends, ascending."""
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
        """The nearest place behind the one that was left where the last tokens of the output stand, or one before it.

        A single token is looked for a little ahead only: anywhere else it would be found by chance.
        """
        for size in range(min(_LONGEST, len(self._end)), 0, -1):
            places = self._runs.get(self._end[-size:], [])
            behind, self._followed = bisect_left(places, self._left + 1), size
            if behind < len(places) and (size > 1 or places[behind] - self._left <= _NEAR):
                return places[behind]
            if behind and size > 1:
                return places[behind - 1]
        return None
