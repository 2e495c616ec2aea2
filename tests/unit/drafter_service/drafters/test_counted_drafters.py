"""Drafters without a network: counts as a distribution, and repetitions of the context as point masses."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from drafter_service.drafters.counts_drafter import CountsDrafter
from drafter_service.drafters.model_drafter import ModelDrafter
from drafter_service.drafters.source_drafter import HybridDrafter, SourceDrafter
from drafter_service.drafters.source_reader import SourceReader
from drafter_service.drafters.uniform_drafter import UniformDrafter, UniformModel
from drafter_service.sessions.draft_session import DraftSession
from drafter_service.sessions.drafter import DraftedToken, NoGuess, ScheduledSession, StepResult
from specdec.errors import ModelRefused
from specdec.rules.draft import uniform_probs
from specdec.rules.speculation import Mode
from specdec.sampling.params import SamplingParams
from specdec.sources.counts import COUNTS_FILE, count, load_counts, save_counts
from specdec.sources.prompt_lookup import PromptLookup
from tests.conformance.g_test import p_value
from tests.support.drafter_fakes import CONTEXT, OPEN, PrefixModel, commit, expected_drafts

TEXT = [1, 2, 1, 2, 1, 3, 0]
IDS = {str(number): number for number in range(11)}


def test_candidates_are_what_followed_and_what_is_frequent() -> None:
    drafter = CountsDrafter("counts", count(TEXT, 5, "hash", order=2), support=64)
    unigram = torch.tensor([2.0, 4.0, 3.0, 2.0, 1.0]) / 12
    ids, mass = drafter.candidates(1)
    assert ids.tolist() == [0, 1, 2, 3, 4]
    assert torch.allclose(mass, unigram + torch.tensor([0.0, 0.0, 2.0, 1.0, 0.0]))
    assert torch.allclose(drafter.candidates(4)[1], unigram)


def test_a_unigram_looks_at_nothing() -> None:
    drafter = CountsDrafter("counts", count(TEXT, 5, "hash", order=1), support=2)
    assert torch.equal(drafter.candidates(1)[0], drafter.candidates(4)[0])
    assert drafter.candidates(1)[0].tolist() == [1, 2]


def test_candidates_are_few_at_any_vocabulary() -> None:
    """Drafting builds no vector over the vocabulary."""
    tokens = torch.arange(150_000).repeat(2)
    drafter = CountsDrafter("counts", count(tokens, 152_000, "hash", order=2), support=64)
    ids, _ = drafter.candidates(5)
    assert len(ids) <= 65
    assert 6 in ids.tolist()


def test_counts_draft_under_the_requests_own_parameters() -> None:
    params = SamplingParams(temperature=0.0, banned_token_ids=(2,), presence_penalty=2.0)
    assert drawn(params, 1) == 3  # 2 follows 1 most often
    assert drawn(SamplingParams(temperature=0.0), 1) == 2
    assert drawn(SamplingParams(temperature=0.0, logit_bias={0: 50.0}), 1) == 0
    assert drawn(SamplingParams(temperature=0.0, min_tokens=9, end_token_ids=(2,)), 1) == 3
    assert drawn(SamplingParams(allowed_token_ids=(4,)), 1) == 4
    coupled = counts_step(SamplingParams(seed=3), 1, Mode.COUPLED)
    assert isinstance(coupled, DraftedToken)
    assert coupled.probs is None


def test_where_no_candidate_may_be_drawn_there_is_no_guess() -> None:
    for params in (SamplingParams(allowed_token_ids=(9,)), SamplingParams(banned_token_ids=(0, 1, 2, 3, 4))):
        for mode in (Mode.REJECTION, Mode.COUPLED):
            assert isinstance(counts_step(params, 1, mode), NoGuess)


def counts_step(params: SamplingParams, last: int, mode: Mode = Mode.REJECTION) -> StepResult:
    drafter = CountsDrafter("counts", count(TEXT, 5, "hash", order=2), support=64)
    session = DraftSession("s", replace(OPEN, tokens=(0, last), prompt_len=1, params=params, mode=mode), CONTEXT)
    drafter.sequences.admit("s", session.limit)
    (result,) = drafter.step([ScheduledSession(session, 2)])
    return result


def drawn(params: SamplingParams, last: int) -> int:
    result = counts_step(params, last)
    assert isinstance(result, DraftedToken)
    assert result.probs is not None
    assert result.token in result.probs.ids.tolist()
    return result.token


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


def looking(tokens: tuple[int, ...], mode: Mode = Mode.REJECTION) -> tuple[SourceDrafter, DraftSession]:
    reader = SourceReader(lambda *_: PromptLookup(3, 64), ahead=4)
    drafter = SourceDrafter("lookup", "prompt_lookup", IDS, reader)
    session = DraftSession("s", replace(OPEN, tokens=tokens, prompt_len=1, mode=mode), CONTEXT)
    drafter.sequences.admit("s", session.limit)
    return drafter, session


def test_a_looked_up_draft_is_as_many_point_masses_as_are_wanted() -> None:
    drafter, session = looking((5, 6, 5))
    proposed = drafter.step([ScheduledSession(session, 3)])
    assert len(proposed) == session.wanted(4) == 7
    assert all(isinstance(each, DraftedToken) for each in proposed)
    assert [each.token for each in proposed if isinstance(each, DraftedToken)][:3] == [6, 5, 6]
    assert [each.probs.ids.tolist() for each in proposed[:1] if isinstance(each, DraftedToken) and each.probs] == [[6]]


def test_coupled_drafts_carry_no_distribution() -> None:
    drafter, session = looking((5, 6, 5), Mode.COUPLED)
    assert {each.probs for each in drafter.step([ScheduledSession(session, 3)]) if isinstance(each, DraftedToken)} == {
        None
    }


def test_a_long_prompt_is_read_in_pieces() -> None:
    drafter, session = looking((*range(10), *range(10), *range(3)) * 1)
    assert drafter.step([ScheduledSession(session, 10)]) != []  # within the budget of one step
    prompt = tuple(number % 11 for number in range(900))
    reader = SourceReader(lambda *_: PromptLookup(3, 1000), ahead=4)
    drafter = SourceDrafter("lookup", "prompt_lookup", IDS, reader)
    session = DraftSession("s", replace(OPEN, tokens=prompt, prompt_len=1, max_len=2000), 2000)
    drafter.sequences.admit("s", session.limit)
    assert drafter.step([ScheduledSession(session, 400)]) == []
    (first, *_) = drafter.step([ScheduledSession(session, 500)])
    assert isinstance(first, DraftedToken)
    assert first.token == 900 % 11


def test_a_session_that_is_opened_again_is_read_anew() -> None:
    drafter, session = looking((5, 6, 5))
    drafter.step([ScheduledSession(session, 3)])
    again = DraftSession("s", replace(OPEN, tokens=(5, 7, 5), prompt_len=1), CONTEXT)
    drafter.sequences.truncate("s", 1)
    (first, *_) = drafter.step([ScheduledSession(again, 2)])
    assert isinstance(first, DraftedToken)
    assert first.token == 7


def test_drafted_and_committed_tokens_are_read_without_computing_again() -> None:
    drafter, session = looking((5, 6, 5))
    for each in drafter.step([ScheduledSession(session, 3)]):
        assert isinstance(each, DraftedToken)
        session.extend(each.token, each.probs)
    drafter.sequences.truncate("s", min(session.commit(commit(3, 6, 5, 6)), drafter.sequences.length("s")))
    pending = len(session) - drafter.sequences.length("s")
    assert [type(each) for each in drafter.step([ScheduledSession(session, pending)])] == [DraftedToken] * 3


class TestHybrid:
    """A source in front of a model."""

    def stage(self, *tokens: int) -> tuple[HybridDrafter, DraftSession, PrefixModel]:
        model = PrefixModel()
        drafter = HybridDrafter(ModelDrafter("small", model, 64), SourceReader(lambda *_: PromptLookup(3, 64), 0))
        opened = replace(OPEN, tokens=tokens, prompt_len=1)
        session = DraftSession("s", opened, CONTEXT)
        drafter.sequences.admit("s", session.limit, tokens)
        model.passes.clear()
        return drafter, session, model

    def test_the_source_drafts_where_it_has_an_answer_without_the_model(self) -> None:
        drafter, session, model = self.stage(5, 6, 5)
        drafts = drafter.step([ScheduledSession(session, 3)])
        assert [each.token for each in drafts if isinstance(each, DraftedToken)] == [6, 5, 6]
        assert model.passes == []
        assert drafter.info.kind == "hybrid"

    def test_the_model_drafts_by_its_own_law_where_the_source_has_none(self) -> None:
        drafter, session, _ = self.stage(1, 2, 3)
        (drafted,) = drafter.step([ScheduledSession(session, 3)])
        assert isinstance(drafted, DraftedToken)
        (token, probs), *_ = expected_drafts(replace(OPEN, tokens=(1, 2, 3), prompt_len=1), 1)
        assert drafted.token == token
        assert drafted.probs is not None
        assert probs is not None
        assert torch.equal(drafted.probs.ids, probs.ids)
        assert torch.equal(drafted.probs.weights, probs.weights)


def by_chance(support: int, **opening: Any) -> DraftedToken:
    """Return a draft of random tokens for a session that is opened so."""
    drafter = UniformDrafter("chance", UniformModel(IDS), support, "random")
    assert drafter.info.kind == "random"
    session = DraftSession("s", replace(OPEN, **opening), CONTEXT)
    drafter.sequences.admit("s", session.limit)
    (drafted,) = drafter.step([ScheduledSession(session, 3)])
    assert isinstance(drafted, DraftedToken)
    return drafted


@pytest.mark.parametrize("uniform", [True, False])
def test_chance_is_uniform_over_what_may_be_drawn(uniform: bool) -> None:
    probs = by_chance(64, params=SamplingParams(banned_token_ids=(2,)), uniform=uniform).probs
    assert probs is not None
    assert not probs.uniform, "the number of its ids does not describe it"
    assert probs.ids.tolist() == [token for token in range(11) if token != 2]
    assert len(set(probs.weights.tolist())) == 1


def test_chance_draws_from_the_whole_vocabulary_if_the_verifier_reads_it() -> None:
    drafts = [by_chance(3, params=SamplingParams(seed=seed), uniform=True) for seed in range(400)]
    assert all(each.probs is uniform_probs(11) for each in drafts)
    law = {(token,): 1 / 11 for token in range(11)}
    assert p_value([(each.token,) for each in drafts], law) > 1e-6
    others = [by_chance(3, params=SamplingParams(seed=seed)).probs for seed in range(20)]
    assert all(probs is not None and len(probs.ids) == 3 and not probs.uniform for probs in others)


def test_chance_races_over_the_whole_vocabulary_in_mode_coupled() -> None:
    drafts = [by_chance(3, params=SamplingParams(seed=s), uniform=True, mode=Mode.COUPLED) for s in range(200)]
    assert {each.token for each in drafts} == set(range(11))
    assert all(each.probs is None for each in drafts)


def test_a_session_without_a_guess_ends_its_draft_until_the_next_verdict() -> None:
    drafter, session = looking((5, 6, 7))
    (nothing,) = drafter.step([ScheduledSession(session, 3)])
    assert isinstance(nothing, NoGuess)
    session.stop_drafting()
    assert (session.verifier_waits, session.wants_draft(4)) == (False, False)
    assert session.take_end() is not None
    assert session.take_end() is None
    session.commit(commit(3, 5))
    assert (session.verifier_waits, session.wants_draft(4), session.take_end()) == (True, True, None)
