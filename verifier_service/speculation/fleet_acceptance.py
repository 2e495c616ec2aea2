"""How likely drafts are accepted, over all sessions of a verifier."""

from specdec.planning.gamma import AcceptanceEstimate

_KEEP = 0.995
"""Factor on the earlier counts with each verdict; all sessions count, so it is longer than a session's own."""

_UNKNOWN = AcceptanceEstimate(decay=_KEEP)


class FleetAcceptance:
    """The acceptance of the drafts of each source, and of all."""

    def __init__(self) -> None:
        self.overall = _UNKNOWN
        self._sources: dict[str, AcceptanceEstimate] = {}

    def alpha(self, source: str) -> float:
        """That of the drafts of a source."""
        return self._of(source).alpha

    def learn(self, source: str, drafted: int, accepted: int) -> None:
        """Learn from a session's verdict, before it is cut: an end id among the accepted drafts is no rejection."""
        self.overall = self.overall.observed(drafted, accepted)
        self._sources[source] = self._of(source).observed(drafted, accepted)

    def _of(self, source: str) -> AcceptanceEstimate:
        return self._sources.get(source, _UNKNOWN)
