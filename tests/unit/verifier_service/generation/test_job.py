"""What would hurt the process is refused by name."""

import pytest

from specdec.errors import (
    ContextLengthExceeded,
    FieldInvalid,
    FieldRequired,
    GammaTooLarge,
    RequestError,
    TokenOutOfRange,
)
from specdec.rules.params import Mode, SamplingParams, Speculation
from tests.unit.verifier_service.fakes import make_job
from verifier_service.generation.job import Limits, check

LIMITS = Limits(vocab_size=10, context_length=8, gamma_max=4)


@pytest.mark.parametrize(
    ("changes", "error", "param"),
    [
        ({"session_id": ""}, FieldRequired, "session_id"),
        ({"tokens": ()}, FieldRequired, "tokens"),
        ({"prompt_len": 0}, FieldInvalid, "prompt_len"),
        ({"prompt_len": 4}, FieldInvalid, "prompt_len"),
        ({"tokens": (1, 2, 10)}, TokenOutOfRange, "tokens"),
        ({"tokens": (1, 2, -1)}, TokenOutOfRange, "tokens"),
        ({"end_ids": frozenset({10})}, TokenOutOfRange, "stop_token_ids"),
        ({"params": SamplingParams(end_token_ids=(11,))}, TokenOutOfRange, "sampling.end_token_ids"),
        ({"params": SamplingParams(logit_bias={10: 1.0})}, TokenOutOfRange, "sampling.logit_bias"),
        ({"params": SamplingParams(allowed_token_ids=(10,))}, TokenOutOfRange, "sampling.allowed_token_ids"),
        ({"params": SamplingParams(banned_token_ids=(10,))}, TokenOutOfRange, "sampling.banned_token_ids"),
        ({"params": SamplingParams(banned_token_ids=tuple(range(10)))}, FieldInvalid, "banned_token_ids"),
        ({"logprobs": 21}, FieldInvalid, "logprobs"),
        ({"tokens": (1,) * 8, "prompt_len": 8}, ContextLengthExceeded, "tokens"),
        ({"tokens": (1,) * 9, "prompt_len": 3}, ContextLengthExceeded, "tokens"),
        ({"speculation": Speculation(Mode.REJECTION, 5)}, GammaTooLarge, "speculation.gamma"),
    ],
)
def test_a_broken_limit_is_named(changes: dict[str, object], error: type[RequestError], param: str) -> None:
    with pytest.raises(error) as caught:
        check(make_job(**changes), LIMITS)
    assert caught.value.param == param


def test_what_keeps_the_limits_passes() -> None:
    check(make_job(tokens=(1,) * 7, prompt_len=7, speculation=Speculation(Mode.BLOCK, 4)), LIMITS)
    check(make_job(tokens=(1,) * 8, prompt_len=3), LIMITS)


@pytest.mark.parametrize(
    ("speculation", "expected"),
    [
        (Speculation(Mode.OFF), False),
        (Speculation(Mode.BLOCK, 0), False),
        (Speculation(Mode.BLOCK), True),
        (Speculation(Mode.COUPLED, 2), True),
    ],
)
def test_a_job_speculates_unless_it_says_no(speculation: Speculation, expected: bool) -> None:
    assert make_job(speculation=speculation).may_speculate is expected


def test_the_end_is_the_context_or_max_tokens_whichever_is_first() -> None:
    assert make_job(max_tokens=4).length_limit(100) == 7
    assert make_job(max_tokens=400).length_limit(100) == 100


@pytest.mark.parametrize(
    ("temperature", "mode", "lenience", "rule"),
    [
        (0.0, Mode.REJECTION, 1.0, Mode.COUPLED),
        (0.0, Mode.BLOCK, 1.0, Mode.COUPLED),
        (0.0, Mode.REJECTION, 0.9, Mode.REJECTION),
        (0.0, Mode.OFF, 1.0, Mode.OFF),
        (0.1, Mode.REJECTION, 1.0, Mode.REJECTION),
        (1.0, Mode.BLOCK, 1.0, Mode.BLOCK),
    ],
)
def test_greedy_drafts_need_no_distribution(temperature: float, mode: Mode, lenience: float, rule: Mode) -> None:
    speculation = Speculation(mode=mode, gamma=None, lenience=lenience)
    assert make_job(params=SamplingParams(temperature=temperature), speculation=speculation).rule is rule
