"""Chains for the likely outcomes of the verdicts under way: drafted in idle time, and sent before anybody asks.

Which outcomes are prepared depends on the tokens before the one that an outcome guesses, on that draft, on γ, on the
acceptance of earlier rounds and on the clock. It must not depend on drafts behind: the chain of an outcome is drawn by
the same numbers as those, and a chain that is there only if its own numbers are such would bias the output.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate

from typing_extensions import override

from drafter_service.sessions.draft_session import DraftSession
from specdec.engine import SequenceMemory

_MISSES = 1.5
"""r: how fast guesses of one token get better with their number."""

_LEAST, _MOST = 0.1, 0.9
"""Acceptance that is believed: a few rounds can show any, and no outcome is to go without a guess for that."""


class OutcomeSession(DraftSession):
    """A session as it may be behind the verdict under way: nobody waits for its chain."""

    @property
    @override
    def verifier_waits(self) -> bool:
        return False

    @override
    def wanted(self, ahead: int) -> int:
        return min(self.gamma - self.drafted, self.limit - len(self))

    @override
    def take_end(self) -> bool:
        return False


class Outcomes:
    """The outcomes that are prepared for each session, and their memory."""

    def __init__(self, sequences: SequenceMemory, most: int) -> None:
        """Have at most `most` outcomes of each session."""
        self._sequences = sequences
        self._most = most
        self._of: dict[DraftSession, list[OutcomeSession]] = {}

    def prepare(self, session: DraftSession) -> list[OutcomeSession]:
        """The outcomes of a session whose draft is complete, made when first asked for; none where none are wanted."""
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
        """Let the session go on with the outcome that its commit made true, and forget the others."""
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
        """Free the memory of all outcomes, for a session that needs it; returns whether there was any."""
        held = [outcome for made in self._of.values() for outcome in made if outcome.admitted]
        for outcome in held:
            self.drop(outcome)
        return bool(held)

    def drop(self, outcome: OutcomeSession) -> None:
        """Free the memory of an outcome, which gets no more drafts."""
        if outcome.admitted:
            outcome.admitted = False
            self._sequences.release(outcome.key)


def _likely(session: DraftSession, budget: int) -> Iterator[tuple[int, int]]:
    """The number of drafts that an outcome accepts, and the token behind them, in an order that does not change."""
    shares = fan_out(budget, session.gamma, session.guesses.alpha)
    for accepted, (share, rivals) in enumerate(zip(shares, session.rivals, strict=False)):
        for token in rivals[:share]:
            yield accepted, token


def fan_out(budget: int, gamma: int, alpha: float) -> list[int]:
    """The number of outcomes for each k in 0..γ; their sum is the budget."""
    root = 1.0 / (1.0 + _MISSES)
    alpha = min(max(alpha, _LEAST), _MOST)
    worth = [alpha ** (k * root) for k in range(gamma)] + [alpha ** (gamma * root) * (1.0 - alpha) ** -root]
    whole = sum(worth)
    ends = [round(budget * upto / whole) for upto in accumulate(worth)]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]
