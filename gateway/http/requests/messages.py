"""The messages of a conversation, with the calls of tools that earlier answers asked for and what came of them."""

from typing import Annotated, Any, ClassVar

from pydantic import Field

from gateway.bounds import MAX_MESSAGES
from gateway.http.requests.body import Body
from gateway.http.requests.fields import ContentField, Role
from gateway.http.requests.tools import ToolCallBody
from gateway.request import ChatPrompt
from gateway.tools.values import MAX_TOOLS, Message
from specdec.errors import FieldRequired


class MessageBody(Body):
    """One message of a conversation. Every field of an answer, also of other servers, is accepted in a request."""

    annotations_only: ClassVar[frozenset[str]] = frozenset(
        {
            "annotations",
            "cache_control",
            "created_at",
            "id",
            "images",
            "metadata",
            "model",
            "parsed",
            "provider_specific_fields",
            "reasoning_details",
            "thinking_blocks",
            "timestamp",
        }
    )

    role: Role
    content: ContentField | None = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: Annotated[list[ToolCallBody], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_call_id: str | None = None
    function_call: None = None
    audio: None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class PrefillBody(Body):
    """Whether the assistant's message is opened, or one that the caller began is continued."""

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    def opened(self, prompt: ChatPrompt) -> ChatPrompt:
        """The conversation with the beginning of the answer; raises FieldInvalid."""
        return prompt.opened(self.add_generation_prompt, bool(self.continue_final_message))


Messages = Annotated[list[MessageBody], Field(max_length=MAX_MESSAGES, fail_fast=True)]


def chat_prompt(messages: list[MessageBody], template_arguments: dict[str, Any] | None = None) -> ChatPrompt:
    """The conversation; "developer" is OpenAI's newer name of the role that chat templates call "system".

    Raises:
        FieldRequired: a message of the system or the user has no content.
    """
    turns = tuple(_message(f"messages[{index}]", message) for index, message in enumerate(messages))
    return ChatPrompt(turns, template_arguments=template_arguments or {})


def _message(place: str, message: MessageBody) -> Message:
    content = message.refusal if message.content is None else message.content
    if content is None and message.role not in ("assistant", "tool"):
        raise FieldRequired(f"{place}.content is required", f"{place}.content")
    return Message(
        role="system" if message.role == "developer" else message.role,
        content=content or "",
        tool_calls=tuple(
            each.call(f"{place}.tool_calls[{index}]") for index, each in enumerate(message.tool_calls or ())
        ),
        tool_call_id=message.tool_call_id or "",
        name=message.name or "",
        reasoning=message.reasoning_content or message.reasoning or "",
    )
