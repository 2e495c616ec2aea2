"""The features of the last committed tokens of a session, for the drafters that read them."""

from collections import deque

from specdec.wire.features import FEATURE_BYTES, Features


class FeatureWindow:
    """Features of consecutive tokens, of which the newest are kept. So a session can open at another drafter."""

    def __init__(self, most_bytes: int = FEATURE_BYTES) -> None:
        """Create an empty window that keeps, and returns at once, about `most_bytes`."""
        self._most_bytes = most_bytes
        self._parts: deque[Features] = deque()
        self._bytes = 0
        self._sent = 0
        """Position after the last feature that `unsent` has returned."""

    @property
    def end(self) -> int:
        """Position after the last token with a feature; 0 without any."""
        return self._parts[-1].end if self._parts else 0

    def add(self, features: Features) -> None:
        """Add features. After a gap, older features are dropped. Features of tokens that have some already are
        ignored."""
        if features.start > self.end:
            self._parts.clear()
            self._bytes = 0
        more = features.since(self.end)
        if more is None:
            return
        self._parts.append(more)
        self._bytes += len(more.values)
        while self._bytes - len(self._parts[0].values) >= self._most_bytes:
            self._bytes -= len(self._parts.popleft().values)

    def all(self) -> Features | None:
        """Return all features, for a drafter that has none."""
        self._sent = 0
        return self.unsent()

    def unsent(self) -> Features | None:
        """Return the features that were not returned since the last `all`; None if there are none."""
        parts = [part for each in self._parts if (part := each.since(self._sent)) is not None]
        if not parts:
            return None
        self._sent = self.end
        count, values = sum(part.count for part in parts), b"".join(part.values for part in parts)
        return Features(parts[0].start, count, values).last(self._most_bytes)
