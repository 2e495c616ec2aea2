"""Log probabilities are transmitted to the bit, in four bytes per number, and inconsistent arrays are refused."""

import pytest
import torch

from specdec.errors import FieldInvalid
from specdec.protos.verifier.v1 import verifier_pb2 as pb
from specdec.sampling.logprobs import TokenLogprobs
from specdec.sampling.scoring import score
from specdec.wire.logprobs import logprobs_from_pb, logprobs_to_pb


@pytest.mark.parametrize("top", [0, 1, 5])
def test_they_survive_the_wire_to_the_bit(top: int) -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(3))
    sent = tuple(score(logits, [4, 9, 30], top))
    message = logprobs_to_pb(sent)
    assert message is not None
    assert logprobs_from_pb(pb.Logprobs.FromString(message.SerializeToString())) == sent
    assert len(message.tokens + message.top_ids + message.top_logprobs) == 3 * (4 + 8 * top)


def test_nobody_asked_is_no_message() -> None:
    assert logprobs_to_pb(()) is None
    assert logprobs_from_pb(pb.GenerateResponse().logprobs) == ()


def test_one_token_is_one_number() -> None:
    assert logprobs_from_pb(pb.Logprobs(tokens=bytes(4))) == (TokenLogprobs(0.0),)


@pytest.mark.parametrize(
    "broken",
    [
        {"tokens": bytes(7)},
        {"top_ids": bytes(8)},
        {"top_logprobs": bytes(6)},
        {"top_ids": bytes(12), "top_logprobs": bytes(12)},
        {"tokens": b""},
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(broken: dict[str, bytes]) -> None:
    whole = {"tokens": bytes(8), "top_ids": bytes(16), "top_logprobs": bytes(16)}
    assert len(logprobs_from_pb(pb.Logprobs(**whole))[0].top) == 2
    with pytest.raises(FieldInvalid):
        logprobs_from_pb(pb.Logprobs(**(whole | broken)))
