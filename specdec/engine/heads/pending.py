"""The states of a sequence that its head has not read."""

from collections.abc import Sequence

import torch
from torch import Tensor


class PendingStates:
    """Tapped states of consecutive tokens, the target's newest. A rejected token takes its state with it."""

    def __init__(self, start: int) -> None:
        """Expect the states from position `start` on."""
        self.start = start
        """Position of the first state."""
        self.tokens: list[int] = []
        """The token at the position of each state."""
        self._parts: list[Tensor] = []
        self._state_bytes = 0

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def end(self) -> int:
        """Position after the last state."""
        return self.start + len(self.tokens)

    @property
    def bytes(self) -> int:
        """Size of all states."""
        return len(self) * self._state_bytes

    def append(self, tokens: Sequence[int], states: Tensor) -> None:
        """Append the states [n, taps · hidden] of the next n tokens."""
        self._state_bytes = states.shape[1] * states.element_size()
        self.tokens += tokens
        self._parts.append(states)

    def truncate(self, length: int) -> None:
        """Drop the states from position `length` on; if there are none before it, expect the state of that position."""
        dropped = len(self) - max(0, length - self.start)
        if dropped > 0:
            del self.tokens[-dropped:]
        while dropped > 0:  # the states before are not copied: a rejected draft must not cost by the sequence's length
            part = self._parts.pop()
            if len(part) > dropped:
                self._parts.append(part[:-dropped])
            dropped -= len(part)
        self.start = min(self.start, length)

    def shorten(self, most: int) -> None:
        """Keep only the last `most` states."""
        first = len(self) - most
        if first > 0:
            self._parts = [self._joined()[first:].clone()]
            del self.tokens[:first]
            self.start += first

    def keep(self, base: int, path: Sequence[int]) -> None:
        """Keep the states before position `base`, and those at the indices `path` of the states from there on."""
        begin = base - self.start
        rows = [*range(begin), *(begin + node for node in path)]
        self._parts = [self._joined()[rows]]
        self.tokens = [self.tokens[row] for row in rows]

    def take(self) -> Tensor:
        """Remove and return all states [n, taps · hidden]."""
        taken, self.start = self._joined(), self.end
        self.tokens, self._parts = [], []
        return taken

    def _joined(self) -> Tensor:
        return self._parts[0] if len(self._parts) == 1 else torch.cat(self._parts)
