"""Renders conversations with tools for models whose chat template does not support tools.

The system message describes the tools, and calls are written in the default format, Hermes.
"""

import json
from collections.abc import Iterator, Sequence

from gateway.tools.values import Tool, ToolCall

Turn = dict[str, object]
"""Message in the form that chat templates read."""


def described(turns: Sequence[Turn], tools: Sequence[Tool]) -> list[Turn]:
    """Return the turns with only roles and contents, and with the tools described in the system message."""
    plain = [{"role": "user" if turn["role"] == "tool" else turn["role"], "content": _content(turn)} for turn in turns]
    if not tools:
        return plain
    if plain and plain[0]["role"] == "system":
        return [{"role": "system", "content": f"{plain[0]['content']}\n\n{_introduction(tools)}"}, *plain[1:]]
    return [{"role": "system", "content": _introduction(tools)}, *plain]


def written(call: ToolCall) -> str:
    """Return a call in the model's notation."""
    return f'<tool_call>\n{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}\n</tool_call>'


def _content(turn: Turn) -> str:
    if turn["role"] == "tool":
        return f"<tool_response>\n{turn['content']}\n</tool_response>"
    return "\n".join([*([str(turn["content"])] if turn["content"] else []), *_calls(turn)])


def _calls(turn: Turn) -> Iterator[str]:
    calls = turn.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        function = call["function"]
        yield written(ToolCall(function["name"], json.dumps(function["arguments"], ensure_ascii=False)))


def _introduction(tools: Sequence[Tool]) -> str:
    listed = "\n".join(json.dumps(tool.described, ensure_ascii=False) for tool in tools)
    return (
        "You may call functions. Their signatures are in <tools></tools>:\n"
        f"<tools>\n{listed}\n</tools>\n"
        "To call one, answer with a JSON object of its name and its arguments in <tool_call></tool_call>:\n"
        '<tool_call>\n{"name": "the name", "arguments": {"an argument": "its value"}}\n</tool_call>'
    )
