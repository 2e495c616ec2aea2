"""Translation of the client's requests to messages of the gateway's gRPC API."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from google.protobuf.message import Message

from specdec.client.events import PromptRequest
from specdec.client.requests import ChatMessage, ChatOptions, CustomTool, FunctionTool, OutputForm, Prompt
from specdec.errors import FieldInvalid
from specdec.planning.gamma_policy import GammaPolicy
from specdec.protos.common.v1 import common_pb2
from specdec.protos.gateway.v1 import gateway_pb2 as pb
from specdec.wire.beams import BEAM_OPTIONS
from specdec.wire.params import GAMMA_POLICY, TREE, mode_to_pb

M = TypeVar("M", bound=Message)

_FORMS = ("json_schema", "json_object", "regex", "choice", "grammar")


def request_to_pb(request: PromptRequest) -> pb.GenerateRequest:
    """Return the message of a request. Raises FieldInvalid for a value that no message can hold."""
    own = {
        **dict.fromkeys(("text", "tokens", "chat")),
        **_prompt(request.prompt, request.chat, request.chat_options),
        "sampling": filled(pb.SamplingOptions(), _named(pb.SamplingOptions, request)),
        "stop": filled(pb.StopOptions(), _named(pb.StopOptions, request)),
        "speculation": _speculation(request),
        "structured_output": request.structured_output and _form(request.structured_output),
        "tools": [_tool(tool) for tool in request.tools],
        "beam_search": BEAM_OPTIONS.to_pb(request.beam_search),
        "tool_choice": _tool_choice(request.tool_choice, request.forced_tool),
        "priority": _number(common_pb2.PriorityClass.DESCRIPTOR, "priority", request.priority),
    }
    return filled(pb.GenerateRequest(), _named(pb.GenerateRequest, request, but=own) | own)


def prompt_to_pb(prompt: Prompt, model: str, chat: bool, options: ChatOptions | None) -> pb.TokenizeRequest:
    """Return the message that asks for the tokens of a text or of a conversation."""
    return filled(pb.TokenizeRequest(), {"model": model, **_prompt(prompt, chat, options)})


def _named(message: type[Message], request: PromptRequest, but: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the values of a request for the fields of a message that have the same names."""
    names = (field.name for field in message.DESCRIPTOR.fields)
    return {name: getattr(request, name) for name in names if name not in (but or ()) and hasattr(request, name)}


def filled(message: M, values: Mapping[str, Any]) -> M:
    """Set the fields of a message; None leaves one unset."""
    for name, value in values.items():
        if value is None:
            continue
        try:
            message.MergeFrom(type(message)(**{name: value}))
        except (TypeError, ValueError) as error:
            raise FieldInvalid(f"{name} cannot be sent: {error}", name) from error
    return message


def _prompt(prompt: Prompt, chat: bool, options: ChatOptions | None) -> dict[str, Any]:
    """Return the field of the prompt, by name."""
    if isinstance(prompt, str):
        return {"chat": _chat((ChatMessage("user", prompt),), options)} if chat else {"text": prompt}
    messages = [each for each in prompt if isinstance(each, ChatMessage)]
    if messages and len(messages) == len(prompt):
        return {"chat": _chat(messages, options)}
    return {"tokens": filled(pb.TokenPrompt(), {"token_ids": prompt})}


def _chat(messages: Sequence[ChatMessage], options: ChatOptions | None) -> pb.ChatPrompt:
    given = asdict(options or ChatOptions())
    given["chat_template_kwargs"] = _json(given["chat_template_kwargs"] or "")
    given["documents"] = [filled(pb.Document(), {"texts": each}) for each in given["documents"]]
    return filled(pb.ChatPrompt(), {"messages": [pb.ChatMessage(**asdict(each)) for each in messages], **given})


def _speculation(request: PromptRequest) -> pb.SpeculationOptions:
    fixed = request.gamma if isinstance(request.gamma, int) else None
    values = {
        "mode": mode_to_pb(request.mode),
        "gamma": fixed,
        "policy": GAMMA_POLICY.to_pb(request.gamma) if isinstance(request.gamma, GammaPolicy) else None,
        "lenience": request.lenience,
        "drafter": request.drafter,
        "tree": TREE.to_pb(request.tree),
        "detail": request.detail,
    }
    return filled(pb.SpeculationOptions(), values)


def _form(form: OutputForm) -> pb.StructuredOutput:
    given = [name for name in _FORMS if getattr(form, name)]
    if len(given) != 1:
        raise FieldInvalid(f"structured_output takes exactly one of {', '.join(_FORMS)}", "structured_output")
    values = {
        "json_schema": _json(form.json_schema) or None,
        "json_object": form.json_object or None,
        "regex": form.regex or None,
        "choice": pb.Choices(texts=form.choice) if form.choice else None,
        "grammar": form.grammar or None,
        "disable_any_whitespace": form.disable_any_whitespace,
        "whitespace_pattern": form.whitespace_pattern,
        "disable_additional_properties": form.disable_additional_properties,
    }
    return filled(pb.StructuredOutput(), values)


def _tool(tool: FunctionTool | CustomTool) -> pb.Tool:
    if isinstance(tool, CustomTool):
        custom = filled(pb.CustomInput(), {"lark": tool.lark or None, "regex": tool.regex or None})
        return filled(pb.Tool(), {"name": tool.name, "description": tool.description, "custom": custom})
    values = {name: getattr(tool, name) for name in ("name", "description", "strict")}
    return filled(pb.Tool(), values | {"parameters": _json(tool.parameters)})


def _tool_choice(mode: str, name: str) -> pb.ToolChoice | None:
    if mode and name:
        raise FieldInvalid("forced_tool is in place of tool_choice: give one of them", "forced_tool")
    if name:
        return pb.ToolChoice(name=name)
    number = _number(pb.ToolChoiceMode.DESCRIPTOR, "tool_choice", mode)
    return None if number is None else pb.ToolChoice(mode=number)


def _number(numbers: Any, field: str, name: str) -> Any:
    """Return the number of a name in lower case in an enum of the protos; None if the name is empty."""
    prefix = numbers.values[0].name.removesuffix("UNSPECIFIED")
    known = {each.name.removeprefix(prefix).lower(): each.number for each in numbers.values[1:]}
    if name and name not in known:
        raise FieldInvalid(f"{field} must be one of {', '.join(known)}, got {name!r}", field)
    return known.get(name)


def _json(value: Mapping[str, Any] | str) -> str:
    return value if isinstance(value, str) else json.dumps(value)
