"""The calls of tools that a turn ended with, for the turn that brings their results."""

from gateway.models.served import ServedModels
from gateway.store.values import TurnView
from gateway.tools.formats import FORMATS
from gateway.tools.message_reader import MessageReader, joined_message
from gateway.tools.values import ToolCall
from gateway.turns.turn import header_from_bytes


def calls_of(last: TurnView, models: ServedModels) -> tuple[ToolCall, ...]:
    """The calls in the output of a whole turn; none where it had no tools."""
    header = header_from_bytes(last.params, last.prompt)
    if not header.tool_format:
        return ()
    tokens = [token for each in last.rounds for token in each.tokens]
    reader = MessageReader(FORMATS[header.tool_format].parser(), "", parallel=header.parallel_calls)
    text = models.of_turn(header.model).tokenizer.decode(tokens)
    return tuple(
        ToolCall.earlier(call.name, call.arguments, call.id)
        for call in joined_message((reader.feed(text), reader.end())).calls
    )
