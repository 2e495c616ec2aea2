"""Parts of a message become blocks that start, continue and end in order, whole or in a stream."""

from gateway.http.replies.blocks import Blocks, blocks_of
from gateway.tools.message_reader import joined_message
from gateway.tools.values import CallDelta, MessageDelta
from gateway.turns.events import Finished, Output, OutputRound
from gateway.turns.statistics import Summary
from specdec.rules.speculation import Speculation
from specdec.sampling.params import FinishReason

DELTAS = (
    MessageDelta(reasoning="so "),
    MessageDelta(reasoning="so", content="We"),
    MessageDelta(content="ll."),
    MessageDelta(calls=(CallDelta(0, "c0", "f", '{"a"'),)),
    MessageDelta(calls=(CallDelta(0, arguments=": 1}"), CallDelta(1, "c1", "g"))),
    MessageDelta(calls=(CallDelta(1, arguments="{}"),)),
)
WHOLE = [("thinking", "so so", ""), ("text", "Well.", ""), ("call", '{"a": 1}', "f"), ("call", "{}", "g")]


def finished(message: MessageDelta | None) -> Finished:
    return Finished(FinishReason.STOP, "", 1, 1, 0, Summary(Speculation(), {}), message=message)


def shown(message: MessageDelta | None, text: str = "") -> OutputRound:
    return OutputRound(text, (), (), 0, 0, 0, message=message)


def test_blocks_of_a_stream_are_those_of_the_whole() -> None:
    blocks = Blocks()
    events = [each for delta in DELTAS for each in blocks.take(shown(delta))]
    events += blocks.take(finished(MessageDelta()))
    order = [(event.what, event.block.index) for event in events if event.what != "more"]
    assert order == [(what, index) for index in range(4) for what in ("begin", "end")]
    whole = blocks_of(Output((), finished(MessageDelta()), (), joined_message(DELTAS)))
    for found in (blocks.known, whole):
        assert [(block.kind, block.content, block.name) for block in found] == WHOLE
        assert [block.index for block in found] == list(range(4))


def test_text_without_a_reader_is_one_block() -> None:
    blocks = Blocks()
    for event in (shown(None, "He"), shown(None, "llo"), finished(None)):
        list(blocks.take(event))
    assert [(block.kind, block.content) for block in blocks.known] == [("text", "Hello")]


def test_the_end_of_a_call_comes_before_the_text_after_it() -> None:
    blocks = Blocks()
    deltas = (
        MessageDelta(calls=(CallDelta(0, "c0", "f", '{"a"'),)),
        MessageDelta(content=" and", calls=(CallDelta(0, arguments=": 1}"), CallDelta(1, "c1", "g", "{}"))),
    )
    for delta in deltas:
        list(blocks.take(shown(delta)))
    found = [(block.kind, block.content, block.id) for block in blocks.known]
    assert found == [("call", '{"a": 1}', "c0"), ("text", " and", ""), ("call", "{}", "c1")]


def test_a_call_that_is_not_finished_is_cut() -> None:
    deltas = (
        MessageDelta(calls=(CallDelta(0, "c0", "f", '{"a": 1}'), CallDelta(1, "c1", "g", '{"a": "'))),
        MessageDelta(content="and"),
    )
    blocks = Blocks()
    for event in (*map(shown, deltas), finished(MessageDelta())):
        list(blocks.take(event))
    assert [(block.kind, block.cut) for block in blocks.known] == [("call", False), ("call", True), ("text", False)]
    whole = blocks_of(Output((), finished(MessageDelta()), (), joined_message(deltas[:1])))
    assert [block.cut for block in whole] == [False, True]
