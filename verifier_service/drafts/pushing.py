"""Whether a drafter is to push chains for the likely outcomes of verdicts, by what was measured of its link.

With P a plain round, r the round trip, s a draft step, and α the chance that a draft is accepted: what is drafted ahead
of a verdict is right with about α^(γ+1), and otherwise a round waits r + γ·s. A pushed chain that is right, about every
second one, was begun when the commit before came, r / 2 behind the verdict, and takes (γ + 1)·s and another r / 2. So
it saves what is left of r + γ·s when it comes: min(r + γ·s, P - s).
"""

from dataclasses import dataclass

from verifier_service.speculation.costs import DraftedRounds

OUTCOMES = 8
"""Outcomes that are pushed for where it is worth it."""
_HITS = 0.5
"""Share of the verdicts for which drafting ahead was wrong, and one of the outcomes is right."""
_LEAST_GAIN = 0.1
"""Share of a round that must be saved; the estimate errs by about half as much."""
_LEAST_DISTANCE = 0.1
"""Least round trip, in plain rounds."""
_MOST_SESSIONS = 4
"""Most sessions of the drafter: each outcome takes it the work of another one."""
_STAYING = 0.7
"""Factor that makes these limits easier while chains are pushed, so that noise does not change the way."""


@dataclass(frozen=True, slots=True)
class MeasuredLink:
    """What was measured of a link."""

    round_trip: float
    """Seconds, without queueing; 0 before it was measured."""
    step: float
    """Seconds of one draft step; 0 before the drafter has said it."""
    sessions: int
    """Sessions of the drafter, those of other verifiers among them."""


class PushChoice:
    """Whether one drafter is to push; for sessions that open from now on."""

    def __init__(self) -> None:
        self.gain = 0.0
        """Share of a round that pushing is expected to save, as last judged."""
        self._pushes = False

    def outcomes(self, link: MeasuredLink, rounds: DraftedRounds, gamma: int) -> int:
        """How many outcomes to push for in a session that opens with a draft of γ tokens."""
        self._pushes = self._worth(link, rounds, gamma)
        return OUTCOMES if self._pushes else 0

    def _worth(self, link: MeasuredLink, rounds: DraftedRounds, gamma: int) -> bool:
        plain, ease = rounds.plain_seconds, _STAYING if self._pushes else 1.0
        self.gain = 0.0
        if not (plain and link.step and link.round_trip):
            return False
        self.gain = saved_share(link, rounds, gamma)
        far = link.round_trip >= ease * _LEAST_DISTANCE * plain
        has_time = ease * (gamma + 1) * link.step <= plain and ease * link.sessions <= _MOST_SESSIONS
        return far and has_time and self.gain >= ease * _LEAST_GAIN


def saved_share(link: MeasuredLink, rounds: DraftedRounds, gamma: int) -> float:
    """The share of a round that drafts ahead which pushed chains save."""
    plain, missed = rounds.plain_seconds, 1.0 - rounds.alpha ** (gamma + 1)
    wait = link.round_trip + gamma * link.step
    saved = max(min(wait, plain - link.step), 0.0)
    return missed * _HITS * saved / (plain + missed * wait)
