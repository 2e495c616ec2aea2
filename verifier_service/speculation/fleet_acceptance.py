"""Acceptance of drafts over all sessions of a verifier."""

from specdec.planning.gamma import AcceptanceEstimate

_KEEP = 0.995
"""Decay of earlier counts with each verdict. Its window is longer than a session's own, since all sessions count."""

_UNKNOWN = AcceptanceEstimate(decay=_KEEP)


class FleetAcceptance:
    """Acceptance of the drafts of each source, and of all sources together."""

    def __init__(self) -> None:
        self.overall = _UNKNOWN
        self._overlap = AcceptanceEstimate(weight=0.0, decay=_KEEP)
        self._sources: dict[str, AcceptanceEstimate] = {}

    def alpha(self, source: str) -> float:
        """Return the acceptance rate of a source's drafts."""
        return self._of(source).alpha

    @property
    def overlap(self) -> float:
        """Mean Σ min(p, q̂) of judged drafts, over the verdicts that know it; 0 before the first."""
        return self._overlap.alpha if self._overlap.accepted else 0.0

    def learn(self, source: str, drafted: int, accepted: int, overlap: float | None = None) -> None:
        """Record a session's verdict before it is cut, since a stop id among accepted drafts is no rejection.

        The arguments after the source are those of `AcceptanceEstimate.observed`.
        """
        self.overall = self.overall.observed(drafted, accepted, overlap)
        self._sources[source] = self._of(source).observed(drafted, accepted, overlap)
        if overlap is not None:
            self._overlap = self._overlap.observed(drafted, accepted, overlap)

    def _of(self, source: str) -> AcceptanceEstimate:
        return self._sources.get(source, _UNKNOWN)
