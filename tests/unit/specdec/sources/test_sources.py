"""Sources without a model: their guesses, the tokens they never learn from, and their limits of memory and time."""

import random
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from specdec.rules.draft import Draft
from specdec.rules.speculation import Mode
from specdec.sampling.params import SamplingParams
from specdec.sources.maker import SourceKind, SourceMaker
from specdec.sources.ngram import Ngram
from specdec.sources.prediction import Prediction
from specdec.sources.prompt_lookup import PromptLookup
from specdec.sources.sampled import IN_DRAFTER, IN_VERIFIER, CountSampling, drafted
from specdec.sources.settings import SourceSettings
from specdec.sources.source import DraftSource
from specdec.sources.suffix import GuessRates, GuessTerms
from tests.conformance.g_test import p_value

WINDOW = 64
VOCABULARY = 152_000
SETTINGS = SourceSettings(window=WINDOW, store_tokens=WINDOW, store_domains=2)


def reading(source: DraftSource, *tokens: int) -> DraftSource:
    source.read(tokens)
    return source


def suffix(maker: SourceMaker, domain: str = "", known: int = 0) -> DraftSource:
    return maker.make(SourceKind.SUFFIX, domain, known, known)


def priced(price: Callable[[], float], rates: GuessRates | None = None, known: int = 0) -> DraftSource:
    """Return a suffix source with a store of its own."""
    terms = GuessTerms(price, rates or GuessRates())
    return SourceMaker(SourceSettings()).make(SourceKind.SUFFIX, "", known, known, terms=terms)


class TestNgram:
    @pytest.mark.parametrize(
        ("tokens", "guess"),
        [
            ((1, 2, 9, 1, 2, 9, 1, 2, 8, 1, 2), [9]),  # the most frequent
            ((1, 2, 9, 1, 2, 8, 1, 2), [8]),  # of two equally frequent ones, the latest
            ((7, 1, 2, 9, 3, 2, 8, 3, 2, 8, 7, 1, 2), [9]),  # the longest context, however rare
            ((1, 2, 3), []),
            ((), []),
        ],
    )
    def test_the_longest_context_says_what_follows_most_often(self, tokens: tuple[int, ...], guess: list[int]) -> None:
        assert reading(Ngram(WINDOW), *tokens).draft((), 1) == guess

    def test_guesses_follow_drafts_and_each_other(self) -> None:
        source = reading(Ngram(WINDOW), 1, 2, 3, 4, 5, 9, 1)
        assert source.draft((2,), 3) == [3, 4, 5]

    def test_nothing_is_learnt_from_drafts_and_guesses(self) -> None:
        source = reading(Ngram(WINDOW), 1, 2, 3, 1)
        first = source.draft((), 8)
        assert first
        for _ in range(5):
            source.draft((5, 6, 5), 8)
        assert source.draft((), 8) == first
        assert source.draft((5, 6, 5), 1) == []

    def test_what_is_older_than_two_windows_is_forgotten_and_a_window_is_kept(self) -> None:
        source = reading(Ngram(WINDOW), 1, 2, *range(1000, 1000 + WINDOW - 4))
        assert source.draft((1,), 1) == [2]
        source.read(range(2000, 2000 + 2 * WINDOW))
        assert source.draft((1,), 1) == []
        assert source.draft((2000 + WINDOW,), 1) == [2001 + WINDOW]


class TestPromptLookup:
    @pytest.mark.parametrize(
        ("tokens", "expected"),
        [
            ((7, 8, 9, 1, 7, 8), [9]),
            ((1, 2, 5, 9, 2, 6, 1, 2), [5]),
            ((4, 1, 4, 2, 4), [2]),
            ((1, 2, 3), []),
            ((1,), []),
        ],
    )
    def test_the_longest_end_that_came_before_says_what_follows(
        self, tokens: tuple[int, ...], expected: list[int]
    ) -> None:
        assert reading(PromptLookup(3, WINDOW), *tokens).draft((), 1) == expected

    def test_the_index_finds_what_a_scan_finds(self) -> None:
        rng = random.Random(0)
        for _ in range(50):
            tokens = [rng.randrange(4) for _ in range(rng.randrange(2, 60))]
            guess = reading(PromptLookup(3, 64), *tokens).draft((), 1)
            assert guess == scan(tokens, 3)

    def test_places_before_the_window_are_forgotten(self) -> None:
        source = PromptLookup(3, WINDOW)
        source.read((1, 2))
        for token in range(1000, 1000 + 3 * WINDOW):
            source.read((token,))
        assert source.draft((1,), 1) == []
        assert source.draft((1000 + 2 * WINDOW,), 2) == [1001 + 2 * WINDOW, 1002 + 2 * WINDOW]


class TestSuffix:
    def test_what_an_earlier_sequence_generated_is_guessed_in_the_next(self) -> None:
        maker = SourceMaker(SETTINGS)
        reading(suffix(maker), *range(40))
        source = reading(suffix(maker, known=1), 99, *range(30))
        assert source.draft((), 4) == [30, 31, 32, 33]

    def test_domains_share_nothing(self) -> None:
        maker = SourceMaker(SETTINGS)
        reading(suffix(maker, "a"), *range(40))
        assert reading(suffix(maker, "b"), *range(30)).draft((), 4) == []

    def test_a_prompt_is_not_stored_for_others(self) -> None:
        maker = SourceMaker(SETTINGS)
        reading(suffix(maker, known=40), *range(40))
        assert reading(suffix(maker, known=30), *range(30)).draft((), 4) == []

    def test_the_own_version_of_a_text_wins_over_stored_ones(self) -> None:
        maker = SourceMaker(SETTINGS)
        for _ in range(3):
            reading(suffix(maker), *range(20))
        own = (*range(10), 77, *range(11, 20), *range(10))
        assert reading(suffix(maker, known=20), *own).draft((), 1) == [77]

    def test_a_draft_ends_where_guesses_have_been_wrong(self) -> None:
        rng = random.Random(1)
        source = suffix(SourceMaker(SourceSettings()))
        source.read([rng.randrange(30) for _ in range(3000)])
        assert sum(len(source.draft((rng.randrange(30),), 8)) for _ in range(100)) < 20
        source.read(list(range(100, 200)) * 4)
        assert len(source.draft((), 32)) == 32

    @pytest.mark.parametrize(("price", "drafted"), [(0.3, 1), (0.45, 1), (0.65, 0), (0.9, 0)])
    def test_a_draft_right_half_of_the_time_costs_less_than_half_a_token(self, price: float, drafted: int) -> None:
        rng = random.Random(1)
        source = priced(lambda: price)
        source.read([token for place in range(400) for token in (1, rng.choice((2, 3)), 1000 + place)])
        assert len(source.draft((5000, 1), 1)) == drafted

    def test_the_price_is_that_of_the_moment(self) -> None:
        price = 0.1
        source = priced(lambda: price)
        source.read(list(range(100, 150)) * 4)
        assert len(source.draft((), 16)) == 16
        price = 1.1
        assert source.draft((), 16) == []

    @pytest.mark.parametrize(("known", "drafted"), [(0, 0), (1600, 1)])
    def test_guesses_wrong_in_generated_text_are_not_drafted_for_others(self, known: int, drafted: int) -> None:
        rates, rng = GuessRates(), random.Random(1)
        unsteady = [rng.randrange(4) for _ in range(1600)]
        priced(lambda: 0.5, rates, known).read(unsteady)
        text = (1, 2, 1)
        assert len(reading(priced(lambda: 0.5, rates), *text).draft((), 1)) == drafted
        assert len(reading(priced(lambda: 0.5), *text).draft((), 1)) == 1

    def test_a_sequence_trusts_its_own_guesses_over_those_of_others(self) -> None:
        rates, rng = GuessRates(), random.Random(1)
        priced(lambda: 0.5, rates).read([rng.randrange(4) for _ in range(1600)])
        source = reading(priced(lambda: 0.5, rates), *list(range(60)) * 5)
        assert len(source.draft((), 8)) == 8

    def test_the_domain_unused_for_longest_is_forgotten(self) -> None:
        maker = SourceMaker(SETTINGS)
        reading(suffix(maker, "a"), *range(40))
        for domain in ("b", "c"):
            suffix(maker, domain)
        assert reading(suffix(maker, "a", known=30), *range(30)).draft((), 4) == []


class TestPrediction:
    EXPECTED = tuple(range(10, 60))

    def followed(self, *output: int) -> DraftSource:
        return reading(Prediction(self.EXPECTED, prompt=2), 1, 2, *output)

    def test_the_prediction_is_the_draft_from_the_first_token_on(self) -> None:
        assert self.followed().draft((), 3) == [10, 11, 12]
        assert self.followed(10, 11).draft((12,), 2) == [13, 14]

    @pytest.mark.parametrize(
        ("output", "follows"),
        [
            ((10, 11, 99, 13), [14]),  # one token differs
            ((10, 11, 98, 99, 12, 13), [14]),  # some are new
            ((10, 11, 30, 31), [32]),  # some are missing
            ((10, 11, 12, 13, 11, 12), [13]),  # the output goes back
            ((10, 99), []),
            ((10, 59), []),  # a single equal token far away does not count
        ],
    )
    def test_it_is_followed_again_where_the_output_comes_back_to_it(
        self, output: tuple[int, ...], follows: list[int]
    ) -> None:
        assert self.followed(*output).draft((), 1) == follows

    def test_a_place_found_again_is_trusted_as_far_as_the_output_has_followed(self) -> None:
        assert len(self.followed(10, 11).draft((), 16)) == 16
        assert self.followed(10, 99, 13).draft((), 16) == [14, 15]
        assert self.followed(10, 99, 13, 14).draft((), 16) == [15, 16, 17, 18]
        assert self.followed(10, 99, 13, 14).draft((15, 16), 16) == [17, 18]

    def test_it_has_nothing_after_its_end_or_for_drafts_of_others(self) -> None:
        assert self.followed(*self.EXPECTED).draft((), 4) == []
        assert self.followed(10).draft((77,), 4) == []


@pytest.mark.parametrize("kind", [SourceKind.NGRAM, SourceKind.PROMPT_LOOKUP, SourceKind.SUFFIX])
def test_memory_is_bounded(kind: SourceKind) -> None:
    rng = random.Random(2)
    source = SourceMaker(SourceSettings(window=256, store_tokens=256)).make(kind, "", 0, 0)
    source.read([rng.randrange(VOCABULARY) for _ in range(2000)])
    tracemalloc.start()
    try:
        source.read([rng.randrange(VOCABULARY) for _ in range(4000)])
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown < 2 * 2**20


@pytest.mark.parametrize("kind", [SourceKind.NGRAM, SourceKind.PROMPT_LOOKUP])
def test_a_token_costs_as_much_at_any_length_and_vocabulary(kind: SourceKind) -> None:
    """CPU time of 2,000 tokens early and late, with one guess each: at most 20 µs per token."""
    rng = random.Random(3)
    source = SourceMaker(SourceSettings()).make(kind, "", 0, 0)
    took = []
    for _ in range(6):
        tokens = [rng.randrange(VOCABULARY) for _ in range(2000)]
        started = time.process_time()
        for token in tokens:
            source.read((token,))
            source.draft((), 1)
        took.append((time.process_time() - started) / len(tokens))
    assert min(took) < 20e-6
    assert min(took[3:]) < 3 * min(took[:3])


def scan(tokens: Sequence[int], longest: int) -> list[int]:
    """Reference for prompt lookup: return the token after the latest occurrence of the longest suffix of the tokens."""
    for size in range(min(longest, len(tokens) - 1), 0, -1):
        for end in range(len(tokens) - 1, size - 1, -1):
            if list(tokens[end - size : end]) == list(tokens[-size:]):
                return [tokens[end]]
    return []


class TestSampled:
    """Drafts drawn from the counts after (1, 2): 9 twice and 8 once."""

    TEXT = (1, 2, 9, 1, 2, 9, 1, 2, 8, 1, 2)

    def drawn(
        self, params: SamplingParams, mode: Mode = Mode.REJECTION, start: int = 11, index: int = IN_VERIFIER
    ) -> Draft:
        source, sampling = reading(Ngram(WINDOW), *self.TEXT), CountSampling.of(params, mode, index)
        draft = drafted(source, sampling, (), 1, 11, start)
        assert draft is not None
        return draft

    @pytest.mark.parametrize(
        ("params", "shares"),
        [
            (SamplingParams(), {8: 1 / 3, 9: 2 / 3}),
            (SamplingParams(temperature=0.5), {8: 1 / 5, 9: 4 / 5}),
            (SamplingParams(banned_token_ids=(9,)), {8: 1.0}),
            (SamplingParams(top_k=1), {9: 1.0}),
            (SamplingParams(presence_penalty=2.0, min_tokens=30, end_token_ids=(9,)), {8: 1 / 3, 9: 2 / 3}),
        ],
    )
    @pytest.mark.parametrize("mode", [Mode.REJECTION, Mode.BLOCK])
    def test_a_draft_is_drawn_from_the_law_that_is_sent(
        self, params: SamplingParams, shares: dict[int, float], mode: Mode
    ) -> None:
        drafts = [self.drawn(replace(params, seed=seed), mode) for seed in range(300)]
        law = drafts[0].probs[0]
        sent = dict(zip(law.ids.tolist(), (law.weights / law.weights.sum()).tolist(), strict=True))
        assert sent == pytest.approx(shares, abs=1e-4)
        assert all(each.probs[0].weights.equal(law.weights) for each in drafts)
        drawn, expected = [each.tokens for each in drafts], {(token,): share for token, share in sent.items()}
        if len(expected) == 1:
            assert {*drawn} == {*expected}
        else:
            assert p_value(drawn, expected) > 1e-6

    def test_a_later_chain_and_another_source_draw_other_numbers(self) -> None:
        draws = [
            [self.drawn(SamplingParams(seed=seed), **key).tokens for seed in range(60)]
            for key in ({}, {"start": 10}, {"index": IN_DRAFTER})
        ]
        assert len({*map(tuple, draws)}) == 3
        assert draws[0] == [self.drawn(SamplingParams(seed=seed)).tokens for seed in range(60)]

    def test_a_chain_follows_what_it_drew(self) -> None:
        source, sampling = reading(Ngram(WINDOW), *self.TEXT), CountSampling.of(SamplingParams(), Mode.REJECTION, 0)
        draft = drafted(source, sampling, (9,), 4, 12, 11)
        assert draft is not None
        assert draft.tokens[:2] == (1, 2)
        assert len(draft.tokens) == len(draft.probs) == 4
        assert [len(law.ids) for law in draft.probs] == [1, 1, 2, 1]

    def test_mode_coupled_sends_no_law(self) -> None:
        drafts = [self.drawn(SamplingParams(seed=seed), Mode.COUPLED) for seed in range(50)]
        assert {each.tokens for each in drafts} == {(8,), (9,)}
        assert not any(each.probs for each in drafts)

    def test_nothing_is_drawn_where_no_counted_token_may_be(self) -> None:
        for params in (SamplingParams(allowed_token_ids=(3,)), SamplingParams(banned_token_ids=(8, 9))):
            for mode in (Mode.REJECTION, Mode.COUPLED):
                assert not self.drawn(params, mode).tokens

    def test_greedy_and_plain_sessions_and_other_sources_draw_nothing(self) -> None:
        assert CountSampling.of(SamplingParams(temperature=0.0), Mode.REJECTION, 0) is None
        assert CountSampling.of(SamplingParams(), Mode.OFF, 0) is None
        other = reading(PromptLookup(3, WINDOW), *self.TEXT)
        assert drafted(other, CountSampling.of(SamplingParams(), Mode.REJECTION, 0), (), 1, 11, 11) is None
