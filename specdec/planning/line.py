"""A line through measured points, of which the latest count most."""

_KEEP = 0.98
"""Factor by which each observation lowers the weight of those before."""
_PRIOR = 2.0
"""Weight, in observations, of the slope that is assumed."""


class Line:
    """y = base + slope · x by least squares, with fading weights and a slope that is assumed at first."""

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    def observe(self, x: float, y: float) -> None:
        """Learn from one point."""
        self._weight = self._weight * _KEEP + 1.0
        self._x = self._x * _KEEP + x
        self._y = self._y * _KEEP + y
        self._xx = self._xx * _KEEP + x * x
        self._xy = self._xy * _KEEP + x * y

    @property
    def known(self) -> bool:
        """Whether anything has been observed."""
        return self._weight > 0.0

    @property
    def mean(self) -> tuple[float, float]:
        """The mean x and y of what was observed."""
        return self._x / self._weight, self._y / self._weight

    def fit(self, slope: float, spread: float) -> tuple[float, float]:
        """Base and slope, neither below 0, where something is known.

        `slope` is assumed, with the weight of two observations that lie `spread` in x from the mean.
        """
        x, y = self.mean
        prior = _PRIOR * spread * spread
        variance = max(self._xx - self._x * x, 0.0)
        fitted = (self._xy - self._x * y + prior * slope) / (variance + prior) if variance + prior else slope
        steepest = y / x if x else fitted
        fitted = min(max(fitted, 0.0), steepest)
        return y - fitted * x, fitted
