"""Bugs in chains that are pushed for the likely outcomes of a verdict."""

from collections.abc import Iterator, Sequence

import pytest

from drafter_service.sessions import outcomes
from drafter_service.sessions.draft_session import DraftSession
from specdec.rules.draft import Draft
from tests.conformance.bugs.bug import Bug, Law
from verifier_service.drafts.draft_buffer import DraftBuffer
from verifier_service.drafts.link import DrafterLink, Listener

_IN_REJECTION = "simulated rejection of turns, pushed"
_IN_BLOCK = "simulated block of turns, pushed"


class _AnyHash(dict[tuple[int, int], Draft]):
    """Pushed chains looked up by prefix length alone."""

    def __setitem__(self, key: tuple[int, int], chain: Draft) -> None:
        super().__setitem__((key[0], 0), chain)

    def get(self, key: tuple[int, int], default: Draft) -> Draft:  # type: ignore[override]
        return super().get((key[0], 0), default)


def chosen_by_its_token(patch: pytest.MonkeyPatch) -> None:
    """The verifier ignores pushed chains that begin with a certain token."""
    advance = DraftBuffer.advance

    def planted(buffer: DraftBuffer, tokens: Sequence[int], judged: int) -> bool:
        buffer._pushed = {key: chain for key, chain in buffer._pushed.items() if chain.tokens[0] != 1}
        return advance(buffer, tokens, judged)

    patch.setattr(DraftBuffer, "advance", planted)


def chosen_by_a_rejected_draft(patch: pytest.MonkeyPatch) -> None:
    """The verifier looks up a pushed chain only if the draft after the rejected one was a certain token."""
    advance = DraftBuffer.advance

    def planted(buffer: DraftBuffer, tokens: Sequence[int], judged: int) -> bool:
        drafts, count = buffer._tokens[buffer._committed :], len(tokens)
        if drafts[:count] != list(tokens) and drafts[count : count + 1] == [1]:
            buffer._pushed = {}
        return advance(buffer, tokens, judged)

    patch.setattr(DraftBuffer, "advance", planted)


def prepared_by_later_drafts(patch: pytest.MonkeyPatch) -> None:
    """The drafter prepares an outcome only if the draft after its position is not a certain token."""
    likely = outcomes._likely

    def planted(session: DraftSession, budget: int) -> Iterator[tuple[int, int]]:
        drafts = session.tokens_from(session.committed)
        for accepted, token in likely(session, budget):
            if drafts[accepted + 1 : accepted + 2] != [1]:
                yield accepted, token

    patch.setattr(outcomes, "_likely", planted)


def epochs_mixed(patch: pytest.MonkeyPatch) -> None:
    """Late chunks of an earlier epoch reach the session."""

    def planted(link: DrafterLink, session_id: str, epoch: int) -> Listener | None:
        return link._listeners.get(session_id)

    patch.setattr(DrafterLink, "_listener", planted)


def chosen_by_its_length(patch: pytest.MonkeyPatch) -> None:
    """A pushed chain is used for any prefix of its length."""
    add = DraftBuffer.add

    def planted(buffer: DraftBuffer, *chunk: object) -> bool:
        buffer._pushed = _AnyHash(buffer._pushed)
        return add(buffer, *chunk)  # type: ignore[arg-type]

    patch.setattr(DraftBuffer, "add", planted)


BUGS = (
    Bug("pushed chain chosen by its token", Law.USE, chosen_by_its_token, (_IN_REJECTION, _IN_BLOCK)),
    Bug(
        "pushed chain chosen by a rejected draft",
        Law.USE,
        chosen_by_a_rejected_draft,
        (_IN_REJECTION,),
        harmless_to=(_IN_BLOCK,),
    ),
    Bug(
        "outcomes prepared by later drafts",
        Law.USE,
        prepared_by_later_drafts,
        (_IN_REJECTION,),
        harmless_to=(_IN_BLOCK,),
    ),
    Bug(
        "late pushed chain of another epoch",
        Law.KV,
        epochs_mixed,
        ("pushed chains of another prefix or epoch",),
        harmless_to=(_IN_BLOCK,),
    ),
    Bug(
        "pushed chain of another prefix",
        Law.KV,
        chosen_by_its_length,
        ("pushed chains of another prefix or epoch",),
        harmless_to=(_IN_BLOCK,),
    ),
)
