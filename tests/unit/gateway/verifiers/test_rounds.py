"""A round that no correct verifier sends counts its verifier as lost, before any use of the round."""

import math
from typing import Any

import pytest

from gateway.verifiers.round_streams import RoundCheck
from specdec.errors import NoVerifier
from specdec.rules.speculation import Origin, Speculation
from specdec.sampling.logprobs import TokenLogprobs
from specdec.sampling.params import FinishReason, SamplingParams
from specdec.wire.generation import GenerationCall, Round

CALL = GenerationCall(
    tokens=(1, 2, 3),
    prompt_len=2,
    sampling=SamplingParams(),
    max_tokens=9,
    stop_token_ids=(),
    speculation=Speculation(),
)
ROUND = Round(
    base_len=3,
    tokens=(4, 5),
    origins=(Origin.ACCEPTED, Origin.RECOVERED),
    draft=(4, 6),
    accepted=1,
    logprobs=(TokenLogprobs(-1.0, ((4, -1.0),)), TokenLogprobs(-2.0, ((5, -math.inf),))),
)


def test_rounds_that_continue_each_other_are_taken() -> None:
    check = RoundCheck(CALL, vocab_size=10)
    check.take(ROUND)
    check.take(ROUND._replace(base_len=5, finish=FinishReason.LENGTH))
    check.take(Round(base_len=7, finish=FinishReason.STOP))


@pytest.mark.parametrize(
    "changes",
    [
        {"base_len": 2},
        {"base_len": 4},
        {"tokens": (), "origins": (), "logprobs": (), "accepted": 0},
        {"tokens": (4,)},
        {"tokens": (4, 10)},
        {"draft": (4, 10)},
        {"origins": (Origin.PLAIN,)},
        {"accepted": 3},
        {"draft": ()},
        {"logprobs": (TokenLogprobs(-1.0),)},
        {"logprobs": (TokenLogprobs(math.nan), TokenLogprobs(-1.0))},
        {"logprobs": (TokenLogprobs(-1.0, ((10, -1.0),)), TokenLogprobs(-1.0))},
        {"tokens": (4,) * 9, "origins": (Origin.PLAIN,) * 9, "logprobs": ()},
    ],
)
def test_a_round_that_makes_no_sense_is_not(changes: dict[str, Any]) -> None:
    with pytest.raises(NoVerifier, match="is invalid"):
        RoundCheck(CALL, vocab_size=10).take(ROUND._replace(**changes))
