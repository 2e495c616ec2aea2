"""Converts conversations, tools and output forms of gRPC requests from protobuf, and parsed messages to protobuf."""

import json
from collections.abc import Sequence
from typing import Any

from gateway.bounds import check_arguments, check_nesting
from gateway.grammars import structured
from gateway.request import ChatPrompt
from gateway.tools.choice import ToolChoice
from gateway.tools.custom import custom_tool, earlier_call
from gateway.tools.message_reader import ReadMessage
from gateway.tools.thinking import template_arguments
from gateway.tools.values import MAX_TOOLS, NO_PARAMETERS, Message, MessageDelta, Tool, ToolCall
from specdec.errors import FieldInvalid, FieldRequired
from specdec.protos.gateway.v1 import gateway_pb2 as pb
from specdec.sampling.grammar import Grammar

_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def chat_prompt(message: pb.ChatPrompt, special: bool = False) -> ChatPrompt:
    """Return the chat prompt of a message; `special` adds the tokens that a text begins with."""
    opens = message.add_generation_prompt if message.HasField("add_generation_prompt") else None
    if message.reasoning_effort not in ("", *_EFFORTS):
        raise FieldInvalid(f"reasoning_effort must be one of {', '.join(_EFFORTS)}", "reasoning_effort")
    enabled = message.enable_thinking if message.HasField("enable_thinking") else None
    arguments = template_arguments(message.reasoning_effort or None, enabled, thinking_budget(message))
    arguments |= _template_arguments(message.chat_template_kwargs)
    prompt = ChatPrompt(
        tuple(_message(turn) for turn in message.messages),
        template_arguments=arguments,
        documents=tuple(dict(each.texts) for each in message.documents),
        special=special,
    )
    return prompt.opened(opens, message.continue_final_message)


def thinking_budget(message: pb.ChatPrompt) -> int | None:
    """Return the thinking budget in tokens; None for no limit."""
    return message.thinking_token_budget if message.HasField("thinking_token_budget") else None


def _template_arguments(text: str) -> dict[str, Any]:
    """Parse template arguments, a JSON object; raises FieldInvalid."""
    name = "chat_template_kwargs"
    try:
        given = check_arguments(json.loads(text or "{}"))
    except (ValueError, RecursionError) as error:
        raise FieldInvalid(f"{name}: {error}", name) from error
    if not isinstance(given, dict):
        raise FieldInvalid(f"{name} must be a JSON object", name)
    return given


def tools_of(messages: Sequence[pb.Tool]) -> tuple[Tool, ...]:
    """Return the tools of their messages; raises FieldInvalid and FieldRequired."""
    if len(messages) > MAX_TOOLS:
        raise FieldInvalid(f"tools takes at most {MAX_TOOLS}, got {len(messages)}", "tools")
    return tuple(_tool(f"tools[{index}]", tool) for index, tool in enumerate(messages))


def tool_choice(message: pb.GenerateRequest) -> ToolChoice:
    """Return the offered tools and the tool choice; raises FieldInvalid and FieldRequired."""
    tools = tools_of(message.tools)
    parallel = message.parallel_tool_calls or not message.HasField("parallel_tool_calls")
    choice = message.tool_choice
    if choice.WhichOneof("choice") == "name":
        if not choice.name:
            raise FieldRequired("tool_choice.name must not be empty", "tool_choice")
        return ToolChoice(tools, name=choice.name, parallel=parallel)
    match choice.mode:
        case pb.TOOL_CHOICE_MODE_UNSPECIFIED | pb.TOOL_CHOICE_MODE_AUTO:
            return ToolChoice(tools, "auto", parallel=parallel)
        case pb.TOOL_CHOICE_MODE_NONE:
            return ToolChoice(tools, "none", parallel=parallel)
        case pb.TOOL_CHOICE_MODE_REQUIRED:
            return ToolChoice(tools, "required", parallel=parallel)
    raise FieldInvalid(f"tool_choice: there is no mode {choice.mode}", "tool_choice")


def structured_output(message: pb.StructuredOutput) -> Grammar | None:
    """Return the grammar of a message; None if it is not set. Raises FieldInvalid."""
    form = message.WhichOneof("form")
    name = f"structured_output.{form}"
    options: dict[str, Any] = {
        "compact": message.disable_any_whitespace,
        "closed": message.disable_additional_properties,
        "whitespace": message.whitespace_pattern or None,
    }
    match form:
        case "json_schema":
            return structured.json_schema(message.json_schema, name, **options)
        case "json_object" if message.json_object:
            return structured.json_schema({"type": "object"}, name, **options)
        case "regex":
            return structured.regex(message.regex, name)
        case "choice":
            return structured.choice(list(message.choice.texts), name)
        case "grammar":
            return structured.context_free(message.grammar, name)
    if message.ByteSize():
        raise FieldInvalid("structured_output has no form", "structured_output")
    return None


def read_to_pb(message: ReadMessage | None) -> pb.AssistantMessage | None:
    """Convert a parsed message; None if the output was not parsed."""
    if message is None:
        return None
    calls = (
        pb.ToolCall(id=call.id, name=call.name, arguments=call.arguments, custom=call.custom) for call in message.calls
    )
    return pb.AssistantMessage(content=message.content, tool_calls=calls, reasoning=message.reasoning)


def delta_to_pb(delta: MessageDelta | None) -> pb.MessageDelta | None:
    """Convert the next part of a message; None if it is empty."""
    if not delta:
        return None
    calls = (
        pb.ToolCallDelta(index=call.index, id=call.id, name=call.name, arguments=call.arguments, custom=call.custom)
        for call in delta.calls
    )
    return pb.MessageDelta(content=delta.content, tool_calls=calls, reasoning=delta.reasoning)


def _message(turn: pb.ChatMessage) -> Message:
    calls = tuple(
        (earlier_call if call.custom else ToolCall.earlier)(call.name, call.arguments, call.id)
        for call in turn.tool_calls
    )
    return Message(turn.role, turn.content, calls, turn.tool_call_id, turn.name, turn.reasoning)


def _custom_tool(place: str, tool: pb.Tool) -> Tool:
    syntax = tool.custom.WhichOneof("grammar") or ""
    definition = getattr(tool.custom, syntax) if syntax else ""
    for name in ("parameters", "strict"):
        if getattr(tool, name):
            raise FieldInvalid(f"{place}.{name} belongs to a function, and this is a custom tool", f"{place}.{name}")
    if syntax and not definition:
        raise FieldRequired(f"{place}.custom.{syntax} must not be empty", f"{place}.custom.{syntax}")
    return custom_tool(tool.name, tool.description, syntax, definition)


def _tool(place: str, tool: pb.Tool) -> Tool:
    if tool.HasField("custom"):
        return _custom_tool(place, tool)
    parameters = tool.parameters or NO_PARAMETERS
    try:
        schema = json.loads(parameters)
    except (ValueError, RecursionError) as error:
        raise FieldInvalid(f"{place}.parameters is not JSON: {error}", f"{place}.parameters") from error
    if not isinstance(schema, dict):
        raise FieldInvalid(f"{place}.parameters must be a JSON Schema, an object", f"{place}.parameters")
    check_nesting(schema, f"{place}.parameters")
    return Tool(tool.name, tool.description, parameters, tool.strict)
