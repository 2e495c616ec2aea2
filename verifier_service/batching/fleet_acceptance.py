"""How likely drafts are accepted, over all sessions of a verifier."""

from collections import defaultdict

from specdec.rules.gamma import AcceptanceEstimate

_KEEP = 0.995
"""Factor on the earlier counts with each verdict; all sessions count, so it is longer than a session's own."""


class FleetAcceptance:
    """The acceptance of the drafts of each source, and of all."""

    def __init__(self) -> None:
        self.overall = AcceptanceEstimate(decay=_KEEP)
        self._sources = defaultdict[str, AcceptanceEstimate](lambda: AcceptanceEstimate(decay=_KEEP))

    def alpha(self, source: str) -> float:
        """That of the drafts of a source."""
        return self._sources[source].alpha

    def learn(self, source: str, drafted: int, accepted: int) -> None:
        """Learn from a session's verdict, before it is cut: an end id among the accepted drafts is no rejection."""
        self.overall = self.overall.observed(drafted, accepted)
        self._sources[source] = self._sources[source].observed(drafted, accepted)
