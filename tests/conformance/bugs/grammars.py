"""Bugs in grammars: which rows are masked, and which tokens a session's state has consumed."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from drafter_service.drafters.model_drafter import GrammarMasks
from drafter_service.sessions.draft_session import DraftSession
from specdec.grammar.budget import BudgetState
from specdec.grammar.state import GrammarState
from specdec.sampling.distribution import History
from tests.conformance.bugs.bug import Bug, Law
from verifier_service.backends import target_pass
from verifier_service.backends.batch_plan import Row

Masks = list[bytes | None]


def bonus_unmasked(patch: pytest.MonkeyPatch) -> None:
    """The row after all drafts is not masked."""
    histories = target_pass._histories

    def planted(row: Row) -> Iterator[History]:
        *rows, bonus = histories(row)
        return iter([*rows, replace(bonus, allowed=None) if row.draft.tokens else bonus])

    patch.setattr(target_pass, "_histories", planted)


def drafts_unseen(patch: pytest.MonkeyPatch) -> None:
    """Every row of a round has the mask of the first row."""
    masks = GrammarState.masks
    patch.setattr(GrammarState, "masks", lambda self, output, drafts=(): masks(self, output) * (len(drafts) + 1))


def rejected_drafts_kept(patch: pytest.MonkeyPatch) -> None:
    """The state advances from the drafts of the last round as if all of them had been committed."""

    def planted(self: GrammarState, output: Sequence[int]) -> bool:
        more = list(output)[len(self._read) :]
        self._read += more[: self._matcher.try_consume_tokens(more)]
        return True

    patch.setattr(GrammarState, "_move_to", planted)


def state_of_another(patch: pytest.MonkeyPatch) -> None:
    """A session is masked by the grammar state of the session before it."""
    masks = GrammarState.masks
    last: list[Sequence[int]] = [()]

    def planted(self: GrammarState, output: Sequence[int], drafts: Sequence[int] = ()) -> Masks:
        other, last[0] = last[0], tuple(output)
        return masks(self, other, drafts)

    patch.setattr(GrammarState, "masks", planted)


def q_unmasked(patch: pytest.MonkeyPatch) -> None:
    """The drafter ignores the grammar."""

    def planted(self: GrammarMasks, session: DraftSession) -> History:
        return session.history

    patch.setattr(GrammarMasks, "history", planted)


def behind_the_end(patch: pytest.MonkeyPatch) -> None:
    """Drafts after the end token are masked as if the end token had not been drafted."""
    masks = GrammarState.masks

    def planted(self: GrammarState, output: Sequence[int], drafts: Sequence[int] = ()) -> Masks:
        found = masks(self, output, drafts)
        return [mask or found[0] for mask in found]

    patch.setattr(GrammarState, "masks", planted)


def drafts_not_thought(patch: pytest.MonkeyPatch) -> None:
    """The thinking budget counts committed tokens but not drafts."""
    masks = BudgetState.masks

    def planted(self: BudgetState, output: Sequence[int], drafts: Sequence[int] = ()) -> Masks:
        return masks(self, output) * (len(drafts) + 1)

    patch.setattr(BudgetState, "masks", planted)


def rejected_thoughts_kept(patch: pytest.MonkeyPatch) -> None:
    """The thinking budget keeps counting the drafts of the last round, including rejected ones."""
    behind = BudgetState._behind
    longest: list[Sequence[int]] = [()]

    def planted(self: BudgetState, tokens: Sequence[int]) -> Sequence[object]:
        longest[0] = tokens if len(tokens) > len(longest[0]) else longest[0]
        return behind(self, [*longest[0][: len(tokens)]])

    patch.setattr(BudgetState, "_behind", planted)


BUGS = (
    Bug("drafts are not thought", Law.GRAMMAR, drafts_not_thought, ("enumerated budget", "served budget")),
    Bug("rejected thoughts kept", Law.GRAMMAR, rejected_thoughts_kept, ("served budget",)),
    Bug("bonus without the grammar", Law.GRAMMAR, bonus_unmasked, ("served grammar",)),
    Bug("grammar blind to drafts", Law.GRAMMAR, drafts_unseen, ("served grammar", "enumerated grammar")),
    Bug("grammar read rejected drafts", Law.GRAMMAR, rejected_drafts_kept, ("served grammar",)),
    Bug("grammar state of another session", Law.GRAMMAR, state_of_another, ("served grammar",)),
    Bug("grammar masks p alone", Law.GRAMMAR, q_unmasked, harmless_to=("served grammar",)),
    Bug("grammar continues after the end", Law.GRAMMAR, behind_the_end, harmless_to=("served grammar",)),
)
