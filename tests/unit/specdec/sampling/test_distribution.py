"""Logits to a distribution: each rule compared with a plain restatement and with transformers' processors."""

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation import logits_process as hf

from specdec.errors import InternalError, TokenOutOfRange
from specdec.sampling.distribution import History, probabilities, sample
from specdec.sampling.params import SamplingParams
from tests.conformance.table_models import reference

NO_HISTORY = History()

Processor = Callable[[Tensor, Tensor], Tensor]

PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    top_k=st.integers(0, 12),
    top_p=st.floats(0.05, 1.0),
    min_p=st.sampled_from([0.0, 0.05, 0.4]),
    presence_penalty=st.sampled_from([0.0, 0.7, -1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.4]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    logit_bias=st.dictionaries(st.integers(0, 9), st.floats(-5, 5), max_size=3),
    min_tokens=st.integers(0, 4),
    end_token_ids=st.sampled_from([(), (2,), (0, 9)]),
    allowed_token_ids=st.sampled_from([(), (1, 3, 5), (0, 2, 9)]),
    banned_token_ids=st.sampled_from([(), (3,), (4, 9)]),
    bad_words=st.sampled_from([(), ((1, 3), (5, 5, 2)), ((8,), (0, 0), (4, 1, 0))]),
)
TOKENS = st.lists(st.integers(0, 9), max_size=6)


def logits(seed: int, rows: int = 1, vocab_size: int = 10, dtype: torch.dtype = torch.float64) -> Tensor:
    return 2 * torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def one(row: Tensor, params: SamplingParams, history: History = NO_HISTORY) -> Tensor:
    return probabilities(row[None], [params], [history])[0]


@given(st.integers(0, 10_000), PARAMS, TOKENS, TOKENS)
@settings(deadline=None)
def test_it_is_the_documented_rule(seed: int, params: SamplingParams, prompt: list[int], output: list[int]) -> None:
    row = logits(seed)[0]
    got = one(row, params, History(prompt, output))
    expected = torch.tensor(reference(row, params, prompt, output), dtype=torch.float64)
    torch.testing.assert_close(got, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("params", "processor"),
    [
        (SamplingParams(temperature=0.6), hf.TemperatureLogitsWarper(0.6)),
        (SamplingParams(top_k=7), hf.TopKLogitsWarper(7)),
        (SamplingParams(top_p=0.8), hf.TopPLogitsWarper(0.8)),
        (SamplingParams(top_p=0.01), hf.TopPLogitsWarper(0.01)),
        (SamplingParams(min_p=0.1), hf.MinPLogitsWarper(0.1)),
        (SamplingParams(repetition_penalty=1.3), hf.RepetitionPenaltyLogitsProcessor(1.3)),
        (
            SamplingParams(repetition_penalty=0.8, temperature=0.7, top_k=40, top_p=0.9, min_p=0.02),
            [
                hf.RepetitionPenaltyLogitsProcessor(0.8),
                hf.TemperatureLogitsWarper(0.7),
                hf.TopKLogitsWarper(40),
                hf.TopPLogitsWarper(0.9),
                hf.MinPLogitsWarper(0.02),
            ],
        ),
    ],
    ids=["temperature", "top-k", "top-p", "tiny top-p", "min-p", "repetition", "all"],
)
def test_it_agrees_with_transformers(params: SamplingParams, processor: Processor | list[Processor]) -> None:
    rows = logits(3, rows=20, vocab_size=600, dtype=torch.float32)
    prompt, output = [5, 17, 17, 300], [2, 5, 599]
    scores = rows.clone()
    ids = torch.tensor([prompt + output] * len(rows))
    for each in processor if isinstance(processor, list) else [processor]:
        scores = each(ids, scores)
    got = probabilities(rows, [params] * len(rows), [History(prompt, output)] * len(rows))
    expected = scores.softmax(-1)
    assert torch.equal(got > 0, expected > 0)
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-4)


@given(st.lists(PARAMS, min_size=2, max_size=8), st.integers(0, 1000))
@settings(deadline=None)
def test_a_row_is_the_same_alone_and_among_others(params: list[SamplingParams], seed: int) -> None:
    rows = logits(seed, rows=len(params), dtype=torch.float32)
    histories = [History([row % 10, 3], [3] * (row % 3)) for row in range(len(params))]
    together = probabilities(rows, params, histories)
    for row, wanted in enumerate(params):
        assert torch.equal(together[row], one(rows[row], wanted, histories[row]))


def in_place(rows: Tensor, params: Sequence[SamplingParams], histories: Sequence[History]) -> Tensor:
    """Planted bug: the temperature is applied to the caller's logits."""
    return probabilities(rows.div_(params[0].temperature), params, histories)


def leaves_logits_alone(function: Callable[..., Tensor]) -> bool:
    biased = SamplingParams(temperature=0.5, top_k=3, logit_bias={1: 2.0}, presence_penalty=1.0, min_tokens=2)
    rows = logits(1, rows=2, dtype=torch.float32)
    before = rows.clone()
    function(rows, [biased, SamplingParams(temperature=0.5)], [History((), (4,))] * 2)
    return torch.equal(rows, before)


def test_the_logits_are_left_as_they_are_and_a_planted_mutation_is_caught() -> None:
    assert leaves_logits_alone(probabilities)
    assert not leaves_logits_alone(in_place)


@pytest.mark.parametrize(
    ("given_dtype", "expected"),
    [(torch.float32, torch.float32), (torch.float64, torch.float64), (torch.bfloat16, torch.float32)],
)
def test_the_result_is_float32_unless_the_logits_are_float64(given_dtype: torch.dtype, expected: torch.dtype) -> None:
    p = probabilities(logits(1).to(given_dtype), [SamplingParams()], [NO_HISTORY])
    assert p.dtype is expected


def test_temperature_zero_is_one_hot_on_the_lowest_of_the_best_ids() -> None:
    tied = torch.tensor([1.0, 5.0, 2.0, 5.0, 5.0])
    assert one(tied, SamplingParams(temperature=0.0)).tolist() == [0.0, 1.0, 0.0, 0.0, 0.0]


def test_a_tiny_repetition_penalty_is_finite() -> None:
    row = torch.tensor([900.0, -1000.0, -math.inf])
    assert one(row, SamplingParams(repetition_penalty=1e-300), History((0, 1, 2), ())).tolist() == [1.0, 0.0, 0.0]


def test_temperature_zero_follows_bias_and_penalties() -> None:
    row = torch.tensor([1.0, 3.0, 2.0])
    assert one(row, SamplingParams(temperature=0.0, logit_bias={0: 5.0})).argmax() == 0
    assert one(row, SamplingParams(temperature=0.0, presence_penalty=1.5), History((), (1,))).argmax() == 2


def test_a_tiny_temperature_is_nearly_greedy_and_finite() -> None:
    row = torch.tensor([900.0, 1000.0, 1000.0, -math.inf])
    for temperature in (1e-300, 1e-40, 1e-10):
        assert one(row, SamplingParams(temperature=temperature)).tolist() == [0.0, 0.5, 0.5, 0.0]


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        (SamplingParams(top_k=2), [0, 1, 2]),
        (SamplingParams(top_p=0.41), [0, 1, 2]),
        (SamplingParams(top_p=0.39), [0]),
        (SamplingParams(min_p=0.5), [0, 1, 2]),
        (SamplingParams(min_p=1.0), [0]),
        (SamplingParams(top_p=1e-9), [0]),
        (SamplingParams(top_k=1), [0]),
        (SamplingParams(top_k=99), [0, 1, 2, 3]),
    ],
)
def test_a_filter_keeps_ties_together_and_at_least_the_best(params: SamplingParams, kept: list[int]) -> None:
    row = torch.tensor([0.4, 0.25, 0.25, 0.1], dtype=torch.float64).log()
    assert one(row, params).nonzero()[:, 0].tolist() == kept


def test_top_p_counts_the_mass_that_top_k_left() -> None:
    row = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64).log()
    assert one(row, SamplingParams(top_k=2, top_p=0.56)).nonzero()[:, 0].tolist() == [0]
    assert one(row, SamplingParams(top_p=0.56)).nonzero()[:, 0].tolist() == [0, 1]


@pytest.mark.parametrize("size", [255, 256, 257, 5000])
def test_a_nucleus_of_any_size_is_found(size: int) -> None:
    """A flat distribution over `size` of 6,000 tokens, with a slope so that nothing ties."""
    row = torch.full((6000,), -60.0, dtype=torch.float64)
    row[:size] = -torch.arange(size) * 1e-6
    kept = int((one(row, SamplingParams(top_p=0.999999)) > 0).sum())
    assert kept == size
    assert int((one(row, SamplingParams(top_p=0.5)) > 0).sum()) == pytest.approx(size / 2, abs=8)


def test_penalties_count_output_tokens_and_repetition_the_prompt_too() -> None:
    row = torch.tensor([2.0, 2.0, -2.0, 0.0], dtype=torch.float64)
    history = History(prompt=(0, 0, 2), output=(1, 1, 1))
    penalties = SamplingParams(repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25)
    expected = torch.tensor([1.0, 1.0 - 0.5 - 0.75, -4.0, 0.0], dtype=torch.float64).softmax(-1)
    torch.testing.assert_close(one(row, penalties, history), expected)


def test_end_tokens_are_masked_until_the_output_is_long_enough() -> None:
    params = SamplingParams(min_tokens=2, end_token_ids=(1, 3))
    row = torch.zeros(4)
    assert one(row, params, History((1, 1, 1), (0,))).tolist() == [0.5, 0.0, 0.5, 0.0]
    assert one(row, params, History((), (0, 0))).tolist() == [0.25] * 4


def test_padded_ids_stay_impossible() -> None:
    row = torch.tensor([0.0, 1.0, -math.inf])
    for params in (SamplingParams(), SamplingParams(logit_bias={2: 100.0}), SamplingParams(top_k=3, top_p=0.999)):
        assert one(row, params)[2] == 0.0


@pytest.mark.parametrize("filters", [{"top_k": 3}, {"top_p": 0.5}, {"top_k": 3, "top_p": 0.5}, {"min_p": 0.5}], ids=str)
def test_a_wide_row_with_one_bad_number_has_no_distribution(filters: dict[str, float]) -> None:
    rows = logits(1, rows=2, vocab_size=4096, dtype=torch.float32)
    rows[0, 7], rows[1, 7] = math.inf, math.nan
    assert probabilities(rows, [SamplingParams(**filters)] * 2, [History()] * 2).isnan().all()  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [3, 8])
def test_many_wide_rows_are_computed_as_few_are(count: int) -> None:
    rows = logits(2, rows=count, vocab_size=2**18, dtype=torch.float32)
    params = [SamplingParams(top_p=0.9), SamplingParams(temperature=0.5), SamplingParams(top_k=9)] * 3
    together = probabilities(rows, params[:count], [History()] * count)
    for row in range(count):
        assert torch.equal(together[row], one(rows[row], params[row], History()))


@pytest.mark.parametrize("bad", [[math.nan, 1.0], [-math.inf, -math.inf], [math.inf, 1.0]])
@pytest.mark.parametrize("params", [{}, {"temperature": 0.0}, {"top_k": 1}, {"top_p": 0.5}, {"min_p": 0.5}], ids=str)
def test_a_row_that_is_no_distribution_becomes_nan_alone(bad: list[float], params: dict[str, float]) -> None:
    wanted = SamplingParams(**params)  # type: ignore[arg-type]
    p = probabilities(torch.tensor([[0.0, 1.0], bad]), [wanted] * 2, [NO_HISTORY] * 2)
    assert torch.equal(p[0], one(torch.tensor([0.0, 1.0]), wanted))
    assert p[1].sum().isnan()


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(min_tokens=1, end_token_ids=(0, 1)),
        SamplingParams(banned_token_ids=(0, 1)),
        SamplingParams(allowed_token_ids=(1,), banned_token_ids=(1,)),
    ],
)
def test_masking_every_token_leaves_no_distribution(params: SamplingParams) -> None:
    assert one(torch.zeros(2), params).sum().isnan()


def test_only_allowed_ids_that_are_not_banned_are_possible() -> None:
    allowed = {"allowed_token_ids": (1, 2, 3), "banned_token_ids": (2,)}
    row = torch.tensor([9.0, 1.0, 9.0, 1.0, 9.0])
    for more in ({}, {"logit_bias": {0: 100.0, 2: 100.0}}, {"presence_penalty": -2.0}, {"top_k": 4}, {"min_p": 0.1}):
        params = SamplingParams(**allowed, **more)  # type: ignore[arg-type]
        assert one(row, params, History((), (0, 2))).tolist() == [0.0, 0.5, 0.0, 0.5, 0.0]
    assert one(row, SamplingParams(temperature=0.0, **allowed)).argmax() == 1  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("params", "history"),
    [
        (SamplingParams(logit_bias={4: 1.0}), NO_HISTORY),
        (SamplingParams(min_tokens=1, end_token_ids=(4,)), NO_HISTORY),
        (SamplingParams(allowed_token_ids=(1, 4)), NO_HISTORY),
        (SamplingParams(banned_token_ids=(4,)), NO_HISTORY),
        (SamplingParams(presence_penalty=1.0), History((), (4,))),
        (SamplingParams(presence_penalty=1.0), History((), (-1,))),
        (SamplingParams(repetition_penalty=1.1), History((4,), ())),
    ],
)
def test_an_id_outside_the_vocabulary_is_refused(params: SamplingParams, history: History) -> None:
    with pytest.raises(TokenOutOfRange):
        one(torch.zeros(4), params, history)


def test_arguments_of_different_lengths_are_refused() -> None:
    with pytest.raises(InternalError):
        probabilities(torch.zeros(2, 4), [SamplingParams()], [NO_HISTORY])


def test_no_rows_give_no_rows() -> None:
    assert probabilities(torch.zeros(0, 4), [], []).shape == (0, 4)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12).filter(any), st.floats(0, 1, exclude_max=True))
def test_a_draw_is_the_inverse_cdf_and_never_impossible(mass: list[float], u: float) -> None:
    p = torch.tensor([mass], dtype=torch.float64)
    token = int(sample(p, torch.tensor([u], dtype=torch.float64)))
    cdf = p[0].cumsum(0)
    assert mass[token] > 0
    assert float(cdf[token]) >= u * float(cdf[-1])
    assert token == 0 or float(cdf[token] - mass[token]) <= u * float(cdf[-1]) * (1 + 1e-12)


@pytest.mark.parametrize("u", [0.0, 0.5, 1.0 - 2.0**-53])
def test_no_uniform_draws_an_impossible_id(u: float) -> None:
    p = torch.tensor([[0.0, 0.1, 0.0, 0.2, 0.0, 0.0]])
    assert int(sample(p, torch.tensor([u], dtype=torch.float64))) in (1, 3)


def test_a_grammar_masks_before_the_filters_and_beside_the_other_masks() -> None:
    row = torch.tensor([3.0, 2.0, 1.0, 0.0])
    mask = bytes([0b1110, *bytes(7)])
    assert one(row, SamplingParams(), History(allowed=mask))[0] == 0.0
    assert one(row, SamplingParams(temperature=0.0), History(allowed=mask)).argmax() == 1
    assert one(row, SamplingParams(top_k=1), History(allowed=mask)).tolist() == [0.0, 1.0, 0.0, 0.0]
    both = SamplingParams(allowed_token_ids=(0, 2, 3), banned_token_ids=(3,), presence_penalty=1.0)
    assert one(row, both, History(output=(2,), allowed=mask)).tolist() == [0.0, 0.0, 1.0, 0.0]
    assert one(row, SamplingParams(), History(allowed=bytes(8))).isnan().all()


def test_a_mask_of_another_vocabulary_is_refused() -> None:
    with pytest.raises(InternalError, match="mask"):
        one(torch.zeros(65), SamplingParams(), History(allowed=bytes(8)))
