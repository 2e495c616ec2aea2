"""Drafters without a network: counts as a distribution, and the context's own repetitions as point masses."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from drafter_service.drafters.counts import COUNTS_FILE, count, load_counts, save_counts
from drafter_service.drafters.ngram import NgramModel
from drafter_service.drafters.prompt_lookup import PromptLookup, continuation
from drafter_service.sessions.draft_session import DraftSession
from drafter_service.sessions.drafter import DraftedToken, NoGuess, ScheduledSession
from specdec.engine import Chunk
from specdec.errors import ModelRefused
from specdec.rules.params import Mode
from tests.drafter_fakes import CONTEXT, OPEN, commit

TEXT = [1, 2, 1, 2, 1, 3, 0]
IDS = {str(number): number for number in range(11)}


def test_a_bigram_row_follows_its_own_token_and_backs_off_to_all_text() -> None:
    model = NgramModel(count(TEXT, 5, "hash", order=2))
    model.admit("s", 4)
    after_one, after_four = model.forward([Chunk("s", [1, 4], logits=2)]).exp()
    unigram = torch.tensor([2.0, 4.0, 3.0, 2.0, 1.0]) / 12
    assert torch.allclose(after_one, (unigram + torch.tensor([0.0, 0.0, 2.0, 1.0, 0.0])) / 4)
    assert torch.allclose(after_four, unigram)
    assert model.length("s") == 2


def test_a_unigram_looks_at_nothing() -> None:
    model = NgramModel(count(TEXT, 5, "hash", order=1))
    model.admit("s", 4)
    first, second = model.forward([Chunk("s", [1, 4], logits=2)])
    assert torch.equal(first, second)


def test_counts_survive_their_file(tmp_path: Path) -> None:
    counts = count(TEXT, 5, "hash", order=2)
    save_counts(counts, tmp_path / "counts" / COUNTS_FILE)
    read = load_counts(tmp_path / "counts" / COUNTS_FILE)
    assert (read.tokenizer_hash, read.order) == ("hash", 2)
    assert torch.equal(read.pairs, counts.pairs)
    assert torch.equal(read.starts, counts.starts)


def test_a_file_that_is_no_counts_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelRefused, match=COUNTS_FILE):
        load_counts(tmp_path / COUNTS_FILE)
    (tmp_path / COUNTS_FILE).write_text("nonsense")
    with pytest.raises(ModelRefused, match=COUNTS_FILE):
        load_counts(tmp_path / COUNTS_FILE)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [([7, 8, 9, 1, 7, 8], 9), ([1, 2, 5, 9, 2, 6, 1, 2], 5), ([4, 1, 4, 2, 4], 2), ([1, 2, 3], None), ([1], None)],
)
def test_the_longest_suffix_that_came_before_says_what_follows(tokens: list[int], expected: int | None) -> None:
    assert continuation(tokens, longest=3) == expected


def _lookup(tokens: tuple[int, ...], mode: Mode = Mode.REJECTION) -> tuple[PromptLookup, DraftSession]:
    drafter = PromptLookup("lookup", IDS, longest=3)
    session = DraftSession("s", replace(OPEN, tokens=tokens, prompt_len=1, mode=mode), CONTEXT)
    drafter.sequences.admit("s", session.limit)
    return drafter, session


def test_a_looked_up_draft_is_a_point_mass() -> None:
    drafter, session = _lookup((5, 6, 5))
    (proposed,) = drafter.step([ScheduledSession(session, 3)])
    assert isinstance(proposed, DraftedToken)
    assert proposed.token == 6
    assert proposed.probs is not None
    assert proposed.probs.ids.tolist() == [6]


def test_coupled_drafts_carry_no_distribution() -> None:
    drafter, session = _lookup((5, 6, 5), Mode.COUPLED)
    (proposed,) = drafter.step([ScheduledSession(session, 3)])
    assert isinstance(proposed, DraftedToken)
    assert proposed.probs is None


def test_a_session_without_a_guess_ends_its_draft_until_the_next_verdict() -> None:
    drafter, session = _lookup((5, 6, 7))
    (nothing,) = drafter.step([ScheduledSession(session, 3)])
    assert isinstance(nothing, NoGuess)
    session.stop_drafting()
    assert (session.verifier_waits, session.wants_draft(4), session.take_end(), session.take_end()) == (
        False,
        False,
        True,
        False,
    )
    session.commit(commit(3, 5))
    assert (session.verifier_waits, session.wants_draft(4), session.take_end()) == (True, True, False)
