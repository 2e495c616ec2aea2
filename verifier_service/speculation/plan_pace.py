"""How often the plan of a batch is made anew: so seldom that this takes a small share of the time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_LEAST_SECONDS = 0.1
"""How long a plan of the same batch holds at least."""
_SHARE, _DRAFTING_SHARE = 0.001, 0.01
"""Share of the time that planning may take: while nothing is drafted, and while drafts are, whose lengths follow it."""


class PlanPace:
    """Says when a plan is old."""

    def __init__(self, clock: Callable[[], float], spent: Callable[[], float]) -> None:
        """Begin without a plan.

        Args:
            clock: gives seconds.
            spent: seconds that the thread which plans has computed; it often waits for other threads meanwhile.
        """
        self._clock = clock
        self._spent = spent
        self._until = float("-inf")

    @property
    def over(self) -> bool:
        """Whether the last plan has held long enough."""
        return self._clock() >= self._until

    @contextmanager
    def planning(self, *, drafting: bool) -> Iterator[None]:
        """Make a plan, which holds by the time that this takes and by whether the batch drafts."""
        began, before = self._clock(), self._spent()
        yield
        share = _DRAFTING_SHARE if drafting else _SHARE
        self._until = began + max(_LEAST_SECONDS, (self._spent() - before) / share)
