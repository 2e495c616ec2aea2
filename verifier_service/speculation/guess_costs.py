"""What guesses of the sources in this process cost a batch, measured beside rounds without."""

from specdec.planning.line import Line
from verifier_service.speculation.pass_sample import PassSample

_KEEP = 0.98
"""Factor by which each round with guesses lowers the weight of those before."""
_FADE = 0.995
"""The same of each round without: when guesses have become too dear to be made, they are tried again at last."""
_PRIOR = 8.0
"""Guessed tokens that weigh as much as the cost that is assumed."""


class GuessCosts:
    """What one guessed token adds to a round of batches of about one size.

    It is more than a token adds to a pass: a pass with a guess in it begins when all sessions have asked for it, where
    a plain one may run ahead of them (decision 35), and the first tokens beyond one for each session may cost more than
    a line through passes of all sizes says.
    """

    def __init__(self) -> None:
        self._plain = Line()
        """Rows and seconds of plain rounds."""
        self._tokens = self._seconds = 0.0
        """Guessed tokens, and by how much their rounds were longer than plain ones."""

    def observe(self, sample: PassSample, gap: float, token: float) -> None:
        """Learn from a round in which all drafts are guesses.

        Args:
            sample: its pass, without prompts.
            gap: seconds since the pass before.
            token: seconds that a row more or less adds to a plain pass.
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
        """Seconds that a guessed token adds to a round, and `token` at least, which is what one adds to a pass."""
        return max((self._seconds + _PRIOR * token) / (self._tokens + _PRIOR), token)
