"""Invalid parameters are refused at construction, by the caller's name for them."""

import math

import pytest

from specdec.errors import FieldInvalid
from specdec.rules.speculation import Speculation
from specdec.sampling.params import MAX_SEED, SamplingParams


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("temperature", value) for value in (-0.1, 2.1, math.nan)],
        *[("top_p", value) for value in (0.0, 1.1, math.nan)],
        *[("top_k", value) for value in (-1, 2**31)],
        *[("min_p", value) for value in (-0.1, 1.1, math.nan)],
        *[("seed", value) for value in (-1, MAX_SEED + 1)],
        *[("presence_penalty", value) for value in (-2.1, 2.1)],
        *[("frequency_penalty", value) for value in (-2.1, 2.1)],
        *[("repetition_penalty", value) for value in (0.0, 2.1, math.inf)],
        *[("min_tokens", value) for value in (-1, 2**31)],
        *[("logit_bias", value) for value in ({-1: 0.0}, {1: 100.5}, {1: math.nan}, {1: -math.inf})],
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(FieldInvalid) as refused:
        SamplingParams(**{field: value})  # type: ignore[arg-type]
    assert refused.value.param == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("temperature", value) for value in (0.0, 2.0)],
        *[("top_p", value) for value in (1e-9, 1.0)],
        *[("min_p", value) for value in (0.0, 1.0)],
        *[("seed", value) for value in (0, MAX_SEED)],
        *[("repetition_penalty", value) for value in (1e-9, 2.0)],
        *[("logit_bias", value) for value in ({0: -100.0}, {5: 100.0}, {})],
    ],
)
def test_the_ends_of_each_range_are_allowed(field: str, value: object) -> None:
    assert getattr(SamplingParams(**{field: value}), field) == value  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("params", "needs"),
    [
        (SamplingParams(), False),
        (SamplingParams(temperature=0.5, top_k=3, top_p=0.5, min_p=0.1, logit_bias={1: 1.0}), False),
        (SamplingParams(presence_penalty=0.1), True),
        (SamplingParams(frequency_penalty=-0.1), True),
        (SamplingParams(repetition_penalty=1.1), True),
        (SamplingParams(min_tokens=1), True),
    ],
)
def test_what_depends_on_the_history_says_so(params: SamplingParams, needs: bool) -> None:
    assert params.needs_history is needs


def test_a_negative_gamma_is_refused_and_zero_is_a_choice() -> None:
    assert Speculation(gamma=0).gamma == 0
    with pytest.raises(FieldInvalid) as refused:
        Speculation(gamma=-1)
    assert refused.value.param == "speculation.gamma"


@pytest.mark.parametrize(
    ("params", "field"),
    [
        (SamplingParams(banned_token_ids=(0, 1, 2, 3)), "banned_token_ids"),
        (SamplingParams(allowed_token_ids=(1, 2), banned_token_ids=(2, 1)), "allowed_token_ids"),
        (SamplingParams(allowed_token_ids=(3,), end_token_ids=(3,), min_tokens=1), "allowed_token_ids"),
        (SamplingParams(banned_token_ids=(0, 1), end_token_ids=(2, 3), min_tokens=1), "banned_token_ids"),
    ],
)
def test_masks_that_leave_nothing_are_refused_by_name(params: SamplingParams, field: str) -> None:
    with pytest.raises(FieldInvalid) as refused:
        params.check_choice(4)
    assert refused.value.param == field


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(banned_token_ids=(0, 1, 2)),
        SamplingParams(allowed_token_ids=(3,), end_token_ids=(3,)),
        SamplingParams(end_token_ids=(0, 1, 2), min_tokens=1),
    ],
)
def test_masks_that_leave_a_token_are_a_choice(params: SamplingParams) -> None:
    params.check_choice(4)


V = 152_000


@pytest.mark.parametrize(
    ("params", "possible"),
    [
        (SamplingParams(), True),
        (SamplingParams(banned_token_ids=tuple(range(V - 1))), True),
        (SamplingParams(banned_token_ids=tuple(range(V))), False),
        (SamplingParams(banned_token_ids=(*range(V - 1), V, V + 1)), True),
        (SamplingParams(banned_token_ids=(*range(V - 1), 0)), True),
        (SamplingParams(banned_token_ids=tuple(range(1, V)), end_token_ids=(0, V), min_tokens=1), False),
        (SamplingParams(banned_token_ids=tuple(range(1, V)), end_token_ids=(0, V)), True),
        (SamplingParams(allowed_token_ids=(V - 1, 3), banned_token_ids=tuple(range(V - 1))), True),
        (SamplingParams(allowed_token_ids=(V - 1, 3), banned_token_ids=tuple(range(3, V))), False),
    ],
    ids=[
        "no mask",
        "all but one",
        "all",
        "others than the vocabulary's",
        "one twice",
        "end token masked",
        "end token",
        "allowed",
        "not allowed",
    ],
)
def test_masks_are_counted_as_sets_of_a_large_vocabulary_would_be(params: SamplingParams, possible: bool) -> None:
    masked = {*params.banned_token_ids, *(params.end_token_ids if params.min_tokens else ())}
    assert bool((set(params.allowed_token_ids) or set(range(V))) - masked) is possible
    if possible:
        params.check_choice(V)
    else:
        with pytest.raises(FieldInvalid):
            params.check_choice(V)
