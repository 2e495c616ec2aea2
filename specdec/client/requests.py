"""Parts of a request: messages of a conversation, tools, and the form of the output."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ToolInvocation:
    """Call of a function that the model asked for."""

    name: str
    arguments: str
    """JSON object as the model wrote it; incomplete if the output was cut."""
    id: str = ""
    """Id that the message with the function's answer repeats."""
    custom: bool = False
    """Whether `arguments` is the input of a custom tool."""


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation."""

    role: str
    """`system`, `user`, `assistant` or `tool`."""
    content: str = ""
    tool_calls: tuple[ToolInvocation, ...] = ()
    """Calls that an assistant asked for."""
    tool_call_id: str = ""
    """Id of the call that a tool answers."""
    name: str = ""
    """Name of the speaker, for chat templates that print it."""
    reasoning: str = ""
    """Thinking of an assistant before the content, for chat templates that print it."""


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """Function that the model may ask the caller to call."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] | str = ""
    """JSON Schema of the arguments, as a mapping or as JSON; empty for a function without any."""
    strict: bool = False
    """Whether the arguments of a call must match the schema."""


@dataclass(frozen=True, slots=True)
class CustomTool:
    """Tool whose input is text instead of a JSON object of arguments."""

    name: str
    description: str = ""
    lark: str = ""
    """Lark grammar of the input; empty for none."""
    regex: str = ""
    """Regular expression that the whole input matches, in place of a grammar."""


@dataclass(frozen=True, slots=True)
class OutputForm:
    """Form that the output must have. Exactly one of the first five fields is set."""

    json_schema: Mapping[str, Any] | str = ""
    """JSON Schema of the output, as a mapping or as JSON."""
    json_object: bool = False
    """Whether the output is any JSON object."""
    regex: str = ""
    """Regular expression that the whole output matches."""
    choice: tuple[str, ...] = ()
    """Texts of which the output is one."""
    grammar: str = ""
    """Context-free grammar in the notation of Lark or GBNF."""
    disable_any_whitespace: bool = False
    """Whether JSON has no white space between its tokens."""
    whitespace_pattern: str = ""
    """Pattern of the white space between the tokens of JSON; empty for the server's."""
    disable_additional_properties: bool = False
    """Whether objects of the schema have only named properties, unless it says otherwise."""


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """Inputs of the model's chat template besides the messages. None and empty leave a choice to the server."""

    add_generation_prompt: bool | None = None
    """Whether the prompt ends with the start of the assistant's next message."""
    continue_final_message: bool = False
    """Whether the output continues the last message, which must be the assistant's."""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the template."""
    reasoning_effort: str = ""
    """`none`, `minimal`, `low`, `medium`, `high`, `xhigh` or `max`."""
    enable_thinking: bool | None = None
    """Whether the model thinks before it answers."""
    thinking_token_budget: int | None = None
    """Maximum number of tokens of thinking."""
    documents: tuple[Mapping[str, str], ...] = ()
    """Documents for templates that render them, each of texts by name."""
    include_reasoning: bool | None = None
    """Whether messages of the answer contain the thinking."""


Prompt = str | tuple[int, ...] | tuple[ChatMessage, ...]
"""Text, token ids, or the messages of a conversation."""
