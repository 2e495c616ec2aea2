"""The fields of a chat that speak of tools: what is offered, which must be called, and what was called before."""

import json
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from gateway.http.requests.body import Body
from gateway.tools.choice import TOOL_NAME, ToolChoice
from gateway.tools.values import MAX_TOOLS, Tool, ToolCall

_NAME = Annotated[str, Field(pattern=TOOL_NAME)]


_ANNOTATIONS = frozenset({"cache_control", "defer_loading", "index", "input_examples"})
"""Fields of tools and calls that clients use for caches or for themselves, and that are ignored."""


class FunctionBody(Body):
    """A function that may be called."""

    annotations_only: ClassVar[frozenset[str]] = _ANNOTATIONS

    name: _NAME
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolBody(Body):
    """A tool; OpenAI has one type of them."""

    annotations_only: ClassVar[frozenset[str]] = _ANNOTATIONS

    type: Literal["function"]
    function: FunctionBody

    def tool(self) -> Tool:
        """The tool."""
        given = self.function
        parameters = {"type": "object", "properties": {}} if given.parameters is None else given.parameters
        return Tool(given.name, given.description or "", json.dumps(parameters, ensure_ascii=False), bool(given.strict))


class NamedFunction(Body):
    """The function that must be called."""

    name: str


class NamedTool(Body):
    """The tool that must be called."""

    type: Literal["function"]
    function: NamedFunction


class CalledFunction(Body):
    """A function and its arguments: a JSON object as text, or what became of it on the way."""

    annotations_only: ClassVar[frozenset[str]] = _ANNOTATIONS | {"description", "parsed_arguments"}

    name: str
    arguments: Any = None


class ToolCallBody(Body):
    """A call in an earlier answer, as clients keep it."""

    annotations_only: ClassVar[frozenset[str]] = _ANNOTATIONS | {"extra_content", "provider_specific_fields"}

    id: str | None = None
    type: Literal["function"] | None = "function"
    function: CalledFunction

    def call(self) -> ToolCall:
        """The call."""
        return ToolCall.earlier(self.function.name, self.function.arguments, self.id or "")


class AllowedToolsOption(Body):
    """Which of the tools may be called, and whether one must be."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]


class AllowedTools(Body):
    """OpenAI's choice of a part of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedToolsOption


class NamedAlone(Body):
    """The tool that must be called, as OpenAI's Responses spell it."""

    type: Literal["function"]
    name: str


class ToolsBody(Body):
    """The fields of a chat that offer tools."""

    tools: Annotated[list[ToolBody], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required", "any"] | NamedTool | NamedAlone | AllowedTools | None = None
    parallel_tool_calls: bool | None = None

    def asked(self) -> ToolChoice:
        """Return the offered tools and the required calls."""
        tools = tuple(each.tool() for each in self.tools or ())
        parallel = self.parallel_tool_calls is not False
        match self.tool_choice:
            case NamedTool(function=NamedFunction(name=name)) | NamedAlone(name=name):
                return ToolChoice(tools, name=name, parallel=parallel)
            case AllowedTools(allowed_tools=allowed):
                names = [each.function.name for each in allowed.tools]
                return ToolChoice(tools, allowed.mode, parallel=parallel).only(names)
            case "any":  # Mistral's word
                return ToolChoice(tools, "required", parallel=parallel)
            case kind:
                return ToolChoice(tools, kind or "auto", parallel=parallel)
