"""The calls of tools that a turn ended with, for the turn that brings their results."""

from collections.abc import Container, Sequence

from gateway.models.served import ServedModels
from gateway.store.values import TurnView
from gateway.text.detokenizer import Decode
from gateway.tools.message_reader import MessageReader, joined_message
from gateway.tools.reading import Reading
from gateway.tools.values import ToolCall
from gateway.turns.turn import header_from_bytes


def calls_of(last: TurnView, models: ServedModels) -> tuple[ToolCall, ...]:
    """The calls in the output of a whole turn; none where it had no tools."""
    header = header_from_bytes(last.params, last.prompt)
    reading = Reading.parse(header.reading)
    if not reading.tool_format:
        return ()
    tokens = [token for each in last.rounds for token in each.tokens]
    reader = MessageReader(reading, "")
    text = _read_text(models.of_turn(header.model).tokenizer.decode, tokens, reader.tags)
    return tuple(
        ToolCall.earlier(call.name, call.arguments, call.id)
        for call in joined_message((reader.feed(text), reader.end())).calls
    )


def _read_text(decode: Decode, tokens: Sequence[int], tags: Container[str]) -> str:
    """The text of tokens, in which the names of tags stand for special tokens."""
    text, run = "", list[int]()
    for token in tokens:
        name = decode.special.get(token, "")
        if name in tags:
            text, run = text + decode(run) + name, []
        else:
            run.append(token)
    return text + decode(run)
