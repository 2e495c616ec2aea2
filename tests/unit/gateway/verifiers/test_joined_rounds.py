"""Plain rounds that arrive together become one, and other rounds stay unchanged."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.verifiers.round_streams import RoundCheck, joinable, joined, joined_rounds
from specdec.errors import NoVerifier
from specdec.rules.speculation import Origin, Speculation
from specdec.sampling.logprobs import TokenLogprobs
from specdec.sampling.params import FinishReason, SamplingParams
from specdec.wire.generation import GenerationCall, Round, RoundDetail, Speedup, Timing

SCORES = TokenLogprobs(-1.0, ((4, -1.0),))
FIRST = Round(base_len=3, tokens=(4,), origins=(Origin.PLAIN,))
SECOND = FIRST._replace(base_len=4, tokens=(5,))
CALL = GenerationCall(
    tokens=(1, 2, 3),
    prompt_len=3,
    sampling=SamplingParams(),
    max_tokens=4,
    stop_token_ids=(),
    speculation=Speculation(),
)


def plain(count: int, start: int = 3) -> list[Round]:
    """Return consecutive plain rounds."""
    return [FIRST._replace(base_len=start + index, tokens=(index,)) for index in range(count)]


def test_a_joined_round_has_all_that_its_rounds_had() -> None:
    rounds = [
        each._replace(
            logprobs=(TokenLogprobs(-1.0 - index),),
            timing=Timing(1.0, 10.0 + index, 100.0),
            speedup=Speedup(index, 1.0),
            fallback="late",
        )
        for index, each in enumerate(plain(3))
    ]
    rounds[0] = rounds[0]._replace(cached_tokens=2)
    rounds[2] = rounds[2]._replace(finish=FinishReason.LENGTH)
    assert list(joined_rounds(rounds)) == [
        Round(
            base_len=3,
            tokens=(0, 1, 2),
            origins=(Origin.PLAIN,) * 3,
            logprobs=(TokenLogprobs(-1.0), TokenLogprobs(-2.0), TokenLogprobs(-3.0)),
            timing=Timing(3.0, 33.0, 300.0),
            speedup=Speedup(2, 1.0),
            finish=FinishReason.LENGTH,
            fallback="late",
            cached_tokens=2,
        )
    ]


def test_a_round_alone_stays_the_same_object() -> None:
    assert joined([FIRST]) is FIRST


def test_neighbours_are_joined_up_to_one_that_cannot_be() -> None:
    rounds = [*plain(3), FIRST._replace(base_len=6, draft=(8,)), *plain(2, start=7)]
    assert [each.tokens for each in joined_rounds(rounds)] == [(0, 1, 2), (4,), (0, 1)]


def test_a_long_run_of_plain_neighbours_becomes_several_rounds() -> None:
    assert [len(each.tokens) for each in joined_rounds(plain(150))] == [64, 64, 22]


def test_plain_neighbours_can_be_joined() -> None:
    assert joinable(FIRST, SECOND)
    assert joinable(FIRST._replace(logprobs=(SCORES,)), SECOND._replace(logprobs=(SCORES,)))
    assert joinable(FIRST._replace(fallback="late"), SECOND._replace(fallback="late"))
    assert joinable(FIRST._replace(cached_tokens=1), SECOND._replace(finish=FinishReason.STOP))


@pytest.mark.parametrize(
    ("of_first", "of_second"),
    [
        ({"draft": (4,)}, {}),
        ({}, {"draft": (5,)}),
        ({"draft": (4,)}, {"draft": (5,)}),
        ({"detail": RoundDetail()}, {}),
        ({}, {"detail": RoundDetail()}),
        ({"detail": RoundDetail()}, {"detail": RoundDetail()}),
        ({"fallback": "late"}, {}),
        ({}, {"fallback": "late"}),
        ({"fallback": "late"}, {"fallback": "no_match"}),
        ({"drafter": "model"}, {}),
        ({}, {"forced": 1}),
        ({"finish": FinishReason.STOP}, {}),
        ({}, {"base_len": 3}),
        ({}, {"base_len": 5}),
        ({"logprobs": (SCORES,)}, {}),
        ({}, {"logprobs": (SCORES,)}),
        ({}, {"tokens": (), "origins": (), "finish": FinishReason.STOP}),
        ({"tokens": (), "origins": ()}, {"base_len": 3}),
        ({}, {"cached_tokens": 1}),
        ({"accepted": 1}, {}),
        ({}, {"accepted": 1}),
        ({"origins": ()}, {"origins": (Origin.PLAIN,) * 2}),
        ({"logprobs": (SCORES,) * 2}, {"logprobs": (SCORES,) * 2}),
    ],
)
def test_nothing_else_can(of_first: dict[str, Any], of_second: dict[str, Any]) -> None:
    assert not joinable(FIRST._replace(**of_first), SECOND._replace(**of_second))


def is_sound(rounds: Sequence[Round]) -> bool:
    check = RoundCheck(CALL, vocab_size=10)
    try:
        for each in rounds:
            check.take(each)
    except NoVerifier:
        return False
    return True


ODD_ROUNDS = st.builds(
    lambda tokens, origins, scores, **fields: Round(
        tokens=tuple(tokens), origins=(Origin.PLAIN,) * origins, logprobs=(SCORES,) * scores, **fields
    ),
    st.lists(st.sampled_from([4, 5, 10]), max_size=2),
    st.integers(0, 2),
    st.integers(0, 2),
    base_len=st.integers(3, 6),
    accepted=st.integers(0, 1),
    cached_tokens=st.sampled_from([0, 1, 4]),
    finish=st.sampled_from([None, FinishReason.STOP]),
)


@given(
    st.lists(
        st.one_of(ODD_ROUNDS, st.builds(lambda base: FIRST._replace(base_len=base), st.integers(3, 7))), max_size=5
    )
)
def test_joining_hides_no_fault_from_the_check_and_makes_none(rounds: list[Round]) -> None:
    assert is_sound(list(joined_rounds(rounds))) == is_sound(rounds)
