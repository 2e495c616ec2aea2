"""Choice between passes with proposals and passes without, by the measured time of a step."""

_TRIED = 4.0
"""Steps of each way to measure before the first choice."""
_TRIAL = 32
"""Every pass with this number tries the other way again."""
_KEEP = 0.95
"""Weight of earlier passes after each pass of the same way."""


class BeamPace:
    """Times of the steps of searches of one width, with proposals and without. All searches of a process share it."""

    def __init__(self) -> None:
        self._seconds = {True: 0.0, False: 0.0}
        self._steps = {True: 0.0, False: 0.0}
        self._passes = 0

    def drafts(self) -> bool:
        """Whether the next pass is to have proposals."""
        self._passes += 1
        for way, steps in self._steps.items():
            if steps < _TRIED:
                return way
        faster = self._seconds[True] / self._steps[True] <= self._seconds[False] / self._steps[False]
        return faster if self._passes % _TRIAL else not faster

    def observe(self, drafted: bool, seconds: float, steps: int) -> None:
        """Add a pass, with the wait for its proposals, and the steps that it covered."""
        self._seconds[drafted] = self._seconds[drafted] * _KEEP + seconds
        self._steps[drafted] = self._steps[drafted] * _KEEP + steps
