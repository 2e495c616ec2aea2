"""Cost of guesses by the sources in this process, measured against rounds without guesses."""

from specdec.planning.line import Line
from verifier_service.speculation.pass_sample import PassSample

_KEEP = 0.98
"""Decay of earlier observations with each round that has guesses."""
_FADE = 0.995
"""Decay with each round that has none, so that guesses which became too expensive are tried again after a while."""
_PRIOR = 8.0
"""Weight of the assumed cost, in guessed tokens."""


class GuessCosts:
    """Time that one guessed token adds to a round of batches of about one size.

    It can exceed the time that a token adds to a pass. A pass with a guess begins only after all sessions have
    requested it, while a plain pass may run ahead (decision 35). The first tokens beyond one for each session may also
    cost more than a fit through passes of all sizes predicts.
    """

    def __init__(self) -> None:
        self._plain = Line()
        """Rows and seconds of plain rounds."""
        self._tokens = self._seconds = 0.0
        """Guessed tokens, and the extra seconds of their rounds over plain ones."""

    def observe(self, sample: PassSample, gap: float, token: float) -> None:
        """Record a round in which all drafts are guesses.

        Args:
            sample: pass of the round, without prompts.
            gap: seconds since the previous pass.
            token: seconds that one more row adds to a plain pass.
        """
        seconds, guessed = gap + sample.seconds, sample.computed - sample.rows
        if guessed and self._plain.known:
            rows, plain = self._plain.mean
            self._tokens = self._tokens * _KEEP + guessed
            self._seconds = self._seconds * _KEEP + seconds - plain - token * (sample.rows - rows)
        elif not guessed:
            self._plain.observe(sample.rows, seconds)
            self._tokens, self._seconds = self._tokens * _FADE, self._seconds * _FADE

    def seconds(self, token: float) -> float:
        """Return the seconds that a guessed token adds to a round, at least `token`, the seconds it adds to a pass."""
        return max((self._seconds + _PRIOR * token) / (self._tokens + _PRIOR), token)
