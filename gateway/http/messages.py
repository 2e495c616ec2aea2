"""The messages of a conversation, with the calls of tools that earlier answers asked for and what came of them."""

from typing import Annotated, Any

from pydantic import Field

from gateway.http.body import Body
from gateway.http.fields import ContentField, Nothing, Role
from gateway.http.tools import ToolCallBody
from gateway.request import ChatPrompt
from gateway.tools.conversation import Message
from gateway.tools.values import MAX_TOOLS
from specdec.errors import FieldRequired, UnsupportedParameter


class MessageBody(Body):
    """One message of a conversation; the empty fields that an earlier answer has beside its content are accepted."""

    role: Role
    content: ContentField | None = None
    name: str | None = None
    refusal: None = None
    tool_calls: Annotated[list[ToolCallBody], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_call_id: str | None = None
    function_call: None = None
    audio: None = None
    annotations: Nothing | None = None


Messages = Annotated[list[MessageBody], Field(fail_fast=True)]


def chat_prompt(messages: list[MessageBody], template_arguments: dict[str, Any] | None = None) -> ChatPrompt:
    """The conversation; "developer" is OpenAI's newer name of the role that chat templates call "system".

    Raises:
        FieldRequired: a message has neither a content nor a call.
        FieldInvalid: the arguments of a call are no JSON object.
        UnsupportedParameter: a message has a name.
    """
    turns = tuple(_message(f"messages[{index}]", message) for index, message in enumerate(messages))
    return ChatPrompt(turns, template_arguments=template_arguments or {})


def _message(place: str, message: MessageBody) -> Message:
    if message.content is None and not message.tool_calls:
        raise FieldRequired(f"{place}.content is required", f"{place}.content")
    if message.name is not None and message.role != "tool":  # beside a tool's answer it repeats what the call says
        raise UnsupportedParameter(f"{place}.name is not supported; leave it out", f"{place}.name")
    role = "system" if message.role == "developer" else message.role
    calls = tuple(each.call() for each in message.tool_calls or ())
    return Message(role, message.content or "", calls, message.tool_call_id or "")
