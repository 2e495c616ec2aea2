"""A stream of events becomes an result with its times."""

from collections.abc import Iterator

import pytest

from specdec.cli.run import report
from specdec.client.collect import collect
from specdec.client.events import Event, FinishedEvent, RoundEvent, StartedEvent, Token
from specdec.errors import InternalError
from specdec.rules.params import FinishReason, Origin

STARTED = StartedEvent("g1", "demo", 7)
FINISHED = FinishedEvent(FinishReason.LENGTH, 3, 3, drafted=4, accepted=1, rounds=2, fallbacks={})
ROUNDS = (
    RoundEvent((Token(5, "a", Origin.ACCEPTED), Token(6, "b", Origin.RECOVERED)), ("x",)),
    RoundEvent((Token(7, "c", Origin.PLAIN),), ()),
)


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
    seen: list[RoundEvent] = []
    collect([STARTED, *ROUNDS, FINISHED], seen.append)
    assert tuple(seen) == ROUNDS


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
