"""Events of several choices and of a message with calls become one result."""

import pytest

from specdec.client.collect import collect
from specdec.client.events import (
    AnswerDelta,
    AnswerMessage,
    FinishedEvent,
    FunctionCallDelta,
    RoundEvent,
    StartedEvent,
    Token,
)
from specdec.client.requests import ToolInvocation
from specdec.errors import InternalError
from specdec.rules.speculation import Origin
from specdec.sampling.logprobs import TokenLogprobs
from specdec.sampling.params import FinishReason

STARTED = StartedEvent("g", "demo", 1)
LOGPROBS = (TokenLogprobs(-1.0),)


def a_round(text: str, choice: int = 0, message: AnswerDelta | None = None) -> RoundEvent:
    return RoundEvent((Token(1, text, Origin.PLAIN),), (), choice=choice, message=message, prompt_logprobs=LOGPROBS)


def finished(choice: int = 0, message: AnswerDelta | None = None) -> FinishedEvent:
    return FinishedEvent(FinishReason.STOP, 1, 2, 0, 0, 2, {}, choice=choice, message=message)


def test_choices_are_told_apart() -> None:
    events = [STARTED, a_round("a", 1), a_round("b", 0), finished(1), a_round("c", 0), finished(0)]
    result = collect(events)
    assert [choice.text for choice in result.choices] == ["bc", "a"]
    assert (result.text, result.finished.choice, result.choices[1].finished.choice) == ("bc", 0, 1)
    assert result.choices[1].prompt_logprobs == LOGPROBS


def test_the_parts_of_a_message_are_joined() -> None:
    begun = AnswerDelta("I ", (FunctionCallDelta(0, '{"a"', "c0", "look"),), "Hm")
    parts = (FunctionCallDelta(0, ": 1}"), FunctionCallDelta(1, "{}", "c1", "see", custom=True))
    more = AnswerDelta("look.", parts, ".")
    last = AnswerDelta("!")
    result = collect([STARTED, a_round("x", message=begun), a_round("y", message=more), finished(message=last)])
    calls = (ToolInvocation("look", '{"a": 1}', "c0"), ToolInvocation("see", "{}", "c1", custom=True))
    assert result.message == AnswerMessage("I look.!", calls, "Hm.")


@pytest.mark.parametrize("events", [[STARTED], [finished()], [STARTED, a_round("a", 1), finished(0)]])
def test_a_stream_that_lacks_an_event_is_an_error(events: list[StartedEvent | RoundEvent | FinishedEvent]) -> None:
    with pytest.raises(InternalError, match="ended before"):
        collect(events)
