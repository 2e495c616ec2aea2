"""Acceptance of drafts over all sessions of a verifier."""

from specdec.planning.gamma import AcceptanceEstimate

_KEEP = 0.995
"""Decay of earlier counts with each verdict. Its window is longer than a session's own, since all sessions count."""

_UNKNOWN = AcceptanceEstimate(decay=_KEEP)


class FleetAcceptance:
    """Acceptance of the drafts of each source, and of all sources together."""

    def __init__(self) -> None:
        self.overall = _UNKNOWN
        self._sources: dict[str, AcceptanceEstimate] = {}

    def alpha(self, source: str) -> float:
        """Return the acceptance rate of a source's drafts."""
        return self._of(source).alpha

    def learn(self, source: str, drafted: int, accepted: int) -> None:
        """Record a session's verdict before it is cut, since a stop id among accepted drafts is no rejection."""
        self.overall = self.overall.observed(drafted, accepted)
        self._sources[source] = self._of(source).observed(drafted, accepted)

    def _of(self, source: str) -> AcceptanceEstimate:
        return self._sources.get(source, _UNKNOWN)
