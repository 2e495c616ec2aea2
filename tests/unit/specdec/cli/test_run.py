"""A stream of events becomes an result with its times."""

from collections.abc import Iterator

import pytest

from protos.common.v1 import common_pb2
from protos.gateway.v1 import gateway_pb2 as pb
from specdec.cli.run import collect, report
from specdec.errors import InternalError

Event = pb.StreamGenerateResponse
STARTED = Event(started=pb.Started(id="g1", model="demo", seed=7))
FINISHED = Event(
    finished=pb.Finished(
        finish_reason=common_pb2.FINISH_REASON_LENGTH,
        usage=pb.Usage(prompt_tokens=3, completion_tokens=3),
        speculation=pb.SpeculationSummary(
            num_draft_tokens=4, num_accepted_draft_tokens=1, num_spec_steps=1, num_plain_steps=1
        ),
    )
)
DRAFTED = pb.Round(
    tokens=[
        pb.CommittedToken(id=5, text="a", origin=common_pb2.TOKEN_ORIGIN_ACCEPTED),
        pb.CommittedToken(id=6, text="b", origin=common_pb2.TOKEN_ORIGIN_RECOVERED),
    ],
    rejected=[pb.RejectedToken(text="x")],
)
PLAIN = pb.Round(tokens=[pb.CommittedToken(id=7, text="c", origin=common_pb2.TOKEN_ORIGIN_PLAIN)])
ROUNDS = (Event(round=DRAFTED), Event(round=PLAIN))


def ticking() -> Iterator[float]:
    yield from (10.0, 10.5, 12.0)


def test_the_first_token_and_the_end_are_timed_from_the_request() -> None:
    clock = ticking()
    result = collect([STARTED, *ROUNDS, FINISHED], clock=lambda: next(clock))
    assert (result.first_token, result.seconds) == (0.5, 2.0)
    assert result.tokens_per_second == 1.5
    assert result.tokens_per_round == 1.5
    assert result.acceptance == 0.25
    assert result.text == "abc"


def test_every_round_is_handed_on_as_it_comes() -> None:
    seen: list[pb.Round] = []
    collect([STARTED, *ROUNDS, FINISHED], seen.append)
    assert seen == [DRAFTED, PLAIN]


@pytest.mark.parametrize("events", [[], [STARTED], [STARTED, *ROUNDS], [FINISHED]])
def test_a_stream_that_just_stops_is_an_error(events: list[Event]) -> None:
    with pytest.raises(InternalError):
        collect(events)


def test_the_report_holds_tokens_origins_and_counts() -> None:
    found = report(collect([STARTED, *ROUNDS, FINISHED]))
    assert [token["origin"] for token in found["tokens"]] == ["accepted", "recovered", "plain"]
    assert found["usage"] == {"prompt_tokens": 3, "completion_tokens": 3}
    assert (found["seed"], found["model"], found["finish_reason"]) == (7, "demo", "length")
    assert found["speculation"]["acceptance"] == 0.25
