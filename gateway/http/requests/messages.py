"""The messages of a conversation, with the calls of tools that earlier answers asked for and what came of them."""

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, GetCoreSchemaHandler, GetPydanticSchema
from pydantic_core import CoreSchema, core_schema

from gateway.bounds import MAX_MESSAGES
from gateway.http.requests.body import Body
from gateway.http.requests.fields import MAX_INT, ContentField, Role
from gateway.http.requests.tools import ToolCallBody
from gateway.request import ChatPrompt
from gateway.tools.thinking import template_arguments
from gateway.tools.values import MAX_TOOLS, Message
from specdec.errors import FieldRequired

Documents = Annotated[list[dict[str, str]], Field(max_length=MAX_MESSAGES, fail_fast=True)]


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


class TemplateBody(Body):
    """Inputs of the chat template besides messages and tools, and the options for the ends of the prompt."""

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    documents: Documents | None = None

    def opened(self, prompt: ChatPrompt) -> ChatPrompt:
        """The conversation with its documents and the beginning of the answer; raises FieldInvalid."""
        prompt = replace(prompt, documents=tuple(self.documents or ()), special=bool(self.add_special_tokens))
        return prompt.opened(self.add_generation_prompt, bool(self.continue_final_message))


Budget = Annotated[int, Field(ge=0, le=MAX_INT)]
"""Most tokens of thinking."""
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ThinkingBody(Body):
    """Whether the model thinks, in the words of Anthropic and of DeepSeek."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Budget | None = None


class ThinkingFields(Body):
    """Settings of the model's thinking. A chat template ignores those that it does not read."""

    reasoning_effort: Effort | None = None
    enable_thinking: bool | None = None
    thinking: ThinkingBody | None = None
    thinking_budget: Budget | None = None
    thinking_token_budget: Annotated[int, Field(ge=-1, le=MAX_INT)] | None = None
    include_reasoning: bool | None = None

    @property
    def budget(self) -> int | None:
        """Most tokens of thinking, by any of its names; None for as many as the model wants."""
        nested = self.thinking.budget_tokens if self.thinking else None
        given = (self.thinking_token_budget, self.thinking_budget, nested)
        chosen = next((each for each in given if each is not None), -1)
        return None if chosen == -1 else chosen  # vLLM's -1: no limit

    @property
    def thinking_arguments(self) -> dict[str, Any]:
        """The values, by the names under which templates know them."""
        thinks = self.enable_thinking
        if thinks is None and self.thinking is not None and self.thinking.type != "adaptive":
            thinks = self.thinking.type == "enabled"
        return template_arguments(self.reasoning_effort, thinks, self.budget)


def _messages(bodies: list[MessageBody]) -> tuple[Message, ...]:
    return tuple(_message(f"messages[{index}]", body) for index, body in enumerate(bodies))


def _read(_: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
    """How messages are read: as bodies, which are converted at once."""
    bodies = handler.generate_schema(Annotated[list[MessageBody], Field(max_length=MAX_MESSAGES, fail_fast=True)])
    return core_schema.no_info_after_validator_function(_messages, bodies)


Messages = Annotated[tuple[Message, ...], GetPydanticSchema(_read)]
"""The messages of a conversation. A body stays until its answer ends, and a message takes less memory than its body.

Reading them raises FieldRequired if a message of the system or the user has no content.
"""


def _message(place: str, message: MessageBody) -> Message:
    content = message.refusal if message.content is None else message.content
    if content is None and message.role not in ("assistant", "tool"):
        raise FieldRequired(f"{place}.content is required", f"{place}.content")
    return Message(
        # "developer" is OpenAI's newer name of the role that chat templates call "system".
        role="system" if message.role == "developer" else message.role,
        content=content or "",
        tool_calls=tuple(
            each.call(f"{place}.tool_calls[{index}]") for index, each in enumerate(message.tool_calls or ())
        ),
        tool_call_id=message.tool_call_id or "",
        name=message.name or "",
        reasoning=message.reasoning_content or message.reasoning or "",
    )
