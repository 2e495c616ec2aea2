"""Passes and orders are transmitted unchanged, and inconsistent columns are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.errors import FieldInvalid
from specdec.protos.verifier.v1 import verifier_pb2 as pb
from specdec.rules.judged import JudgedToken
from specdec.rules.speculation import Mode, Origin, Speculation
from specdec.sampling.logprobs import TokenLogprobs
from specdec.sampling.params import FinishReason, SamplingParams
from specdec.wire.generation import GenerationCall, Round, RoundDetail, Speedup, Timing
from specdec.wire.passes import Opening, Orders, Pass, orders_from_pb, orders_to_pb, pass_from_pb, pass_to_pb

CALL = GenerationCall(
    session_id="a",
    epoch=7,
    tokens=(1, 2, 3),
    prompt_len=2,
    sampling=SamplingParams(),
    max_tokens=9,
    stop_token_ids=(0,),
    speculation=Speculation(Mode.COUPLED, 4),
)
GAIN = Speedup(1.5, 1.25)
PLAIN = Round(base_len=3, tokens=(5,), origins=(Origin.PLAIN,), fallback="late", speedup=GAIN)
DRAFTED = Round(
    base_len=70_000,
    tokens=(5, 6),
    origins=(Origin.ACCEPTED, Origin.RECOVERED),
    draft=(5, 9, 4),
    accepted=1,
    drafter="model",
    forced=1,
    finish=FinishReason.STOP,
    timing=Timing(0.5, 0.25, 0.125),
)
EXPLAINED = DRAFTED._replace(
    logprobs=(TokenLogprobs(-0.5, ((5, -0.5),)), TokenLogprobs(-1.5, ((6, -1.5),))),
    detail=RoundDetail(3, "goodput", 0.5, 0.25, 0.125, (JudgedToken(0.5, 0.25),) * 3),
    cached_tokens=2,
)


def _sent(done: Pass) -> Pass:
    return pass_from_pb(pb.ServeResponse.FromString(pass_to_pb(done).SerializeToString()))


def test_rounds_of_all_kinds_travel_unchanged() -> None:
    done = Pass([(4, PLAIN), (0, DRAFTED), (70_000, EXPLAINED)], {9: b"status"})
    assert _sent(done) == done


def test_an_empty_pass_is_a_heartbeat() -> None:
    assert _sent(Pass()) == Pass([], {})


@given(st.lists(st.tuples(st.integers(0, 2**31 - 1), st.sampled_from([PLAIN, DRAFTED, EXPLAINED])), max_size=20))
def test_any_mix_of_rounds_travels_unchanged(rounds: list[tuple[int, Round]]) -> None:
    assert _sent(Pass(rounds)) == Pass(rounds, {})


COLUMNS = (
    *("slots", "base_lens", "counts", "tokens", "origins", "drafted", "draft_tokens", "accepted", "forced"),
    *("finishes", "drafters", "fallbacks", "draft_seconds", "queue_seconds", "verify_seconds", "adaptive"),
)


@pytest.mark.parametrize("column", COLUMNS)
def test_a_column_of_another_length_is_refused(column: str) -> None:
    message = pass_to_pb(Pass([(1, PLAIN), (2, DRAFTED)]))
    setattr(message, column, getattr(message, column)[:-4])
    with pytest.raises((ValueError, FieldInvalid)):
        pass_from_pb(message)


def test_a_name_that_is_not_there_is_refused() -> None:
    message = pass_to_pb(Pass([(1, DRAFTED)]))
    message.drafters = b"\x07"
    with pytest.raises(IndexError):
        pass_from_pb(message)


def test_orders_travel_unchanged() -> None:
    opening = Opening(3, CALL, 35, 2.5, {"x-request-id": "r"})
    orders = Orders([opening, Opening(4, CALL, 35)], [1, 2], {5: 100, 6: 200})
    assert orders_from_pb(orders_to_pb(orders)) == orders


def test_an_opening_that_cannot_be_read_is_refused_alone() -> None:
    message = orders_to_pb(Orders([Opening(3, CALL, 35), Opening(4, CALL, 35)]))
    message.opens[0].call.tokens = b"abc"
    orders = orders_from_pb(message)
    assert [each.slot for each in orders.opens] == [4]
    assert isinstance(orders.unreadable[3], FieldInvalid)


def test_credits_without_slots_are_refused() -> None:
    message = orders_to_pb(Orders(credits={1: 2}))
    message.credits = b""
    with pytest.raises(FieldInvalid):
        orders_from_pb(message)
