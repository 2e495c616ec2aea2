"""A line fitted to measured points, with decaying weights."""

_KEEP = 0.98
"""Factor by which each observation lowers the weight of earlier ones."""
_PRIOR = 2.0
"""Weight of the prior slope, in observations."""


class Line:
    """y = base + slope · x by least squares, with decaying weights and a prior slope."""

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    def observe(self, x: float, y: float) -> None:
        """Add one point."""
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
        """The weighted mean x and y of the observed points."""
        return self._x / self._weight, self._y / self._weight

    @property
    def rate(self) -> float:
        """The ratio of the mean x to the mean y; 0 before the first point."""
        return self._x / self._y if self._y else 0.0

    def fit(self, slope: float, spread: float) -> tuple[float, float]:
        """Base and slope, neither below 0; needs at least one observation.

        `slope` is the prior slope, weighted like two observations at a distance of `spread` in x from the mean.
        """
        x, y = self.mean
        prior = _PRIOR * spread * spread
        variance = max(self._xx - self._x * x, 0.0)
        fitted = (self._xy - self._x * y + prior * slope) / (variance + prior) if variance + prior else slope
        steepest = y / x if x else fitted
        fitted = min(max(fitted, 0.0), steepest)
        return y - fitted * x, fitted
