"""A generation that breaks off is resumed after the tokens that arrived, for each of its choices."""

from typing import Any

import pytest

from specdec.client.events import PromptRequest
from specdec.client.reading import ReadPosition
from specdec.protos.gateway.v1 import gateway_pb2 as pb


def begun(**request: Any) -> ReadPosition:
    reading = ReadPosition(PromptRequest("Say it", **request), (("authorization", "Bearer k"),))
    call = reading.next_call()
    assert isinstance(call, pb.StreamGenerateRequest)
    assert call.resumable
    take(reading, started=pb.Started(id="g"))
    return reading


def take(reading: ReadPosition, **event: Any) -> Any:
    return reading.take(pb.StreamGenerateResponse(**event))


def a_round(count: int, choice: int = 0) -> pb.Round:
    return pb.Round(tokens=[pb.CommittedToken(id=1)] * count, choice=choice)


def test_a_resumed_call_says_how_many_tokens_arrived() -> None:
    reading = begun(user="ann")
    take(reading, round=a_round(3))
    take(reading, round=a_round(2))
    assert reading.next_call() == pb.ResumeGenerationRequest(id="g", user="ann", received=5)


def test_a_resumed_call_counts_each_choice() -> None:
    reading = begun(n=3)
    take(reading, round=a_round(3, choice=2))
    take(reading, round=a_round(1))
    assert reading.next_call() == pb.ResumeGenerationRequest(id="g", received_of_choices=[1, 0, 3])


def test_what_is_sent_again_arrives_once() -> None:
    reading = begun(n=2)
    assert take(reading, finished=pb.Finished(choice=1)) is not None
    assert take(reading, started=pb.Started(id="g")) is None
    assert take(reading, finished=pb.Finished(choice=1)) is None
    assert take(reading, finished=pb.Finished(choice=0)) is not None


def test_a_token_ends_the_row_of_broken_calls() -> None:
    reading = begun()
    reading.next_call()
    assert reading.failures == 2
    take(reading, round=a_round(1))
    assert reading.failures == 1


def test_calls_have_the_request_id_for_the_logs() -> None:
    reading = begun(request_id="mine")
    assert reading.metadata == (("authorization", "Bearer k"), ("x-request-id", "mine"))
    assert dict(begun().metadata)["x-request-id"] != dict(begun().metadata)["x-request-id"]


@pytest.mark.parametrize("request_id", ["two words", "ä", "x" * 129])
def test_an_id_that_metadata_cannot_hold_is_not_sent_as_metadata(request_id: str) -> None:
    assert "x-request-id" not in dict(begun(request_id=request_id).metadata)
