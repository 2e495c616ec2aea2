"""Chains for the likely outcomes of pending verdicts, drafted in idle time and sent before they are requested.

The choice of outcomes depends on the tokens before the guessed token, on the draft at its position, on γ, on the
acceptance of earlier rounds and on the clock. It must not depend on later drafts. The chain of an outcome uses the same
random numbers as those drafts, so a chain that exists only for some of these numbers would bias the output.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate

from typing_extensions import override

from drafter_service.sessions.draft_session import DraftSession
from specdec.engine import SequenceMemory
from specdec.wire.session import DraftEnd

_MISSES = 1.5
"""r: exponent of the improvement of guesses of one token with their number."""

_LEAST, _MOST = 0.1, 0.9
"""Bounds of the assumed acceptance. A few rounds can show any rate, and every outcome should get a guess."""


class OutcomeSession(DraftSession):
    """A session as it would be after one outcome of the pending verdict. No verifier waits for its chain."""

    @property
    @override
    def verifier_waits(self) -> bool:
        return False

    @override
    def wanted(self, ahead: int) -> int:
        return min(self.gamma - self.drafted, self.limit - len(self))

    @override
    def take_end(self) -> DraftEnd | None:
        return None


class Outcomes:
    """The prepared outcomes of each session, and their memory."""

    def __init__(self, sequences: SequenceMemory, most: int) -> None:
        """Prepare at most `most` outcomes for each session."""
        self._sequences = sequences
        self._most = most
        self._of: dict[DraftSession, list[OutcomeSession]] = {}

    def prepare(self, session: DraftSession) -> list[OutcomeSession]:
        """Return the outcomes of a session with a complete draft, created on the first call; empty if unwanted."""
        budget = min(self._most, session.outcomes)
        if not (budget and session.admitted and session.drafted) or session.verifier_waits:
            return []
        made = self._of.setdefault(session, [])
        left = list(_likely(session, budget))[len(made) :] if len(made) < budget else []
        for accepted, token in left:
            prefix = (*session.tokens_from(0)[: session.committed + accepted], token)
            name = f"{session.key}+{len(prefix)}+{token}"
            outcome = OutcomeSession(name, replace(session.opened, tokens=prefix, gamma=session.gamma), session.limit)
            if len(outcome) < outcome.limit:
                outcome.admitted = self._sequences.admit(name, outcome.limit, prefix, outcome.domain)
            made.append(outcome)
        return [outcome for outcome in made if outcome.admitted]

    def settle(self, session: DraftSession) -> None:
        """Continue the session with the outcome that its commit made true, and forget the others."""
        committed = session.tokens_from(0)[: session.committed]
        for outcome in self._of.get(session, ()) if not session.drafted else ():
            if outcome.admitted and outcome.tokens_from(0)[: outcome.committed] == committed:
                session.adopt(outcome)
        self.forget(session)

    def forget(self, session: DraftSession) -> None:
        """Free the memory of a session's outcomes."""
        for outcome in self._of.pop(session, ()):
            self.drop(outcome)

    def give_back(self) -> bool:
        """Free the memory of all outcomes for a session that needs it. Return whether there was any."""
        held = [outcome for made in self._of.values() for outcome in made if outcome.admitted]
        for outcome in held:
            self.drop(outcome)
        return bool(held)

    def drop(self, outcome: OutcomeSession) -> None:
        """Free the memory of an outcome, which then gets no more drafts."""
        if outcome.admitted:
            outcome.admitted = False
            self._sequences.release(outcome.key)


def _likely(session: DraftSession, budget: int) -> Iterator[tuple[int, int]]:
    """Yield each likely outcome, in a fixed order: the number of accepted drafts, and the token after them."""
    shares = fan_out(budget, session.gamma, session.guesses.alpha)
    for accepted, (share, alternatives) in enumerate(zip(shares, session.alternatives, strict=False)):
        for token in alternatives[:share]:
            yield accepted, token


def fan_out(budget: int, gamma: int, alpha: float) -> list[int]:
    """Return the number of outcomes for each k in 0..γ accepted drafts; they sum to the budget."""
    root = 1.0 / (1.0 + _MISSES)
    alpha = min(max(alpha, _LEAST), _MOST)
    worth = [alpha ** (k * root) for k in range(gamma)] + [alpha ** (gamma * root) * (1.0 - alpha) ** -root]
    whole = sum(worth)
    ends = [round(budget * upto / whole) for upto in accumulate(worth)]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]
