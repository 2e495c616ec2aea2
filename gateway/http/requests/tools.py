"""The tool fields of a chat: the tools offered, the choice among them, and earlier calls."""

import json
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema
from pydantic_core import PydanticCustomError

from gateway.http.requests.body import Body
from gateway.tools.choice import TOOL_NAME, ToolChoice
from gateway.tools.custom import custom_tool, earlier_call
from gateway.tools.values import MAX_TOOLS, NO_PARAMETERS, Tool, ToolCall
from specdec.errors import FieldRequired

_NAME = Annotated[str, Field(pattern=TOOL_NAME)]


_ANNOTATIONS = frozenset({"cache_control", "defer_loading", "index", "input_examples"})
"""Fields of tools and calls that clients use for caches or for themselves, and that are ignored."""


def _object_text(value: Any) -> str:
    if not isinstance(value, dict):
        raise PydanticCustomError("dict_type", "Input should be a valid dictionary")
    return json.dumps(value, ensure_ascii=False)


ObjectText = Annotated[
    str, BeforeValidator(_object_text), PlainSerializer(json.loads), WithJsonSchema({"type": "object"})
]
"""A JSON object, kept as text: a body stays until its answer ends, and a text takes less memory than many values."""


class FunctionBody(Body):
    """A function that may be called."""

    annotations_only: ClassVar[frozenset[str]] = _ANNOTATIONS

    name: _NAME
    description: str | None = None
    parameters: ObjectText | None = None
    strict: bool | None = None


class GrammarBody(Body):
    """The grammar of a custom tool's input."""

    syntax: Literal["lark", "regex"]
    definition: Annotated[str, Field(min_length=1)]


class CustomFormat(Body):
    """The form of a custom tool's input; its grammar is in `grammar`, or beside `type` as in OpenAI's Responses."""

    type: Literal["text", "grammar"]
    grammar: GrammarBody | None = None
    syntax: Literal["lark", "regex"] | None = None
    definition: Annotated[str, Field(min_length=1)] | None = None

    def rule(self, place: str) -> GrammarBody | None:
        """The grammar; None for any text. Raises FieldRequired, which names a field at `place`."""
        if self.type == "text":
            return None
        if self.grammar:
            return self.grammar
        if self.syntax is None or self.definition is None:
            raise FieldRequired(f"{place}.grammar is required", f"{place}.grammar")
        return GrammarBody(syntax=self.syntax, definition=self.definition)


class CustomBody(Body):
    """A tool whose input is a text."""

    annotations_only: ClassVar[frozenset[str]] = _ANNOTATIONS

    name: _NAME
    description: str | None = None
    format: CustomFormat | None = None

    def tool(self, place: str) -> Tool:
        """The tool; raises FieldRequired, which names a field at `place`."""
        rule = self.format.rule(f"{place}.format") if self.format else None
        given = (rule.syntax, rule.definition) if rule else ("", "")
        return custom_tool(self.name, self.description or "", *given)


class ToolBody(Body):
    """A tool: a function, or a custom tool."""

    annotations_only: ClassVar[frozenset[str]] = _ANNOTATIONS

    type: Literal["function", "custom"]
    function: FunctionBody | None = None
    custom: CustomBody | None = None

    def tool(self, place: str) -> Tool:
        """The tool; raises FieldRequired, which names a field at `place`."""
        if self.type == "custom" and self.custom:
            return self.custom.tool(f"{place}.custom")
        given = self.function
        if given is None or self.type == "custom":
            raise FieldRequired(f"{place}.{self.type} is required", f"{place}.{self.type}")
        return Tool(given.name, given.description or "", given.parameters or NO_PARAMETERS, bool(given.strict))


Tools = Annotated[list[ToolBody], Field(max_length=MAX_TOOLS, fail_fast=True)]


class NamedFunction(Body):
    """The function that must be called."""

    name: str


class NamedTool(Body):
    """The tool that must be called."""

    type: Literal["function"]
    function: NamedFunction

    @property
    def tool_name(self) -> str:
        """Name of the tool."""
        return self.function.name


class NamedCustom(Body):
    """The custom tool that must be called."""

    type: Literal["custom"]
    custom: NamedFunction

    @property
    def tool_name(self) -> str:
        """Name of the tool."""
        return self.custom.name


class NamedAlone(Body):
    """The tool that must be called, as OpenAI's Responses spell it."""

    type: Literal["function", "custom"]
    name: str

    @property
    def tool_name(self) -> str:
        """Name of the tool."""
        return self.name


NamedAny = NamedTool | NamedCustom | NamedAlone


class CalledFunction(Body):
    """A function and its arguments: a JSON object as text, or what became of it on the way."""

    annotations_only: ClassVar[frozenset[str]] = _ANNOTATIONS | {"description", "parsed_arguments"}

    name: str
    arguments: Any = None


class CalledCustom(Body):
    """A custom tool and its input."""

    annotations_only: ClassVar[frozenset[str]] = _ANNOTATIONS

    name: str
    input: str | None = None


class ToolCallBody(Body):
    """A call in an earlier answer, as clients keep it."""

    annotations_only: ClassVar[frozenset[str]] = _ANNOTATIONS | {"extra_content", "provider_specific_fields"}

    id: str | None = None
    type: Literal["function", "custom"] | None = "function"
    function: CalledFunction | None = None
    custom: CalledCustom | None = None

    def call(self, place: str) -> ToolCall:
        """The call; raises FieldRequired, which names a field at `place`."""
        if self.custom:
            return earlier_call(self.custom.name, self.custom.input or "", self.id or "")
        if self.function is None:
            raise FieldRequired(f"{place}.function is required", f"{place}.function")
        return ToolCall.earlier(self.function.name, self.function.arguments, self.id or "")


class AllowedToolsOption(Body):
    """Which of the tools may be called, and whether one must be."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedAny], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]


class AllowedTools(Body):
    """OpenAI's choice of a part of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedToolsOption


class ToolsBody(Body):
    """The fields of a chat that offer tools."""

    tools: Tools | None = None
    tool_choice: Literal["none", "auto", "required", "any"] | NamedAny | AllowedTools | None = None
    parallel_tool_calls: bool | None = None

    def asked(self) -> ToolChoice:
        """Return the offered tools and the required calls."""
        tools = tuple(each.tool(f"tools[{index}]") for index, each in enumerate(self.tools or ()))
        parallel = self.parallel_tool_calls is not False
        match self.tool_choice:
            case NamedTool() | NamedCustom() | NamedAlone() as named:
                return ToolChoice(tools, name=named.tool_name, parallel=parallel)
            case AllowedTools(allowed_tools=allowed):
                names = [each.tool_name for each in allowed.tools]
                return ToolChoice(tools, allowed.mode, parallel=parallel).only(names)
            case "any":  # Mistral's word
                return ToolChoice(tools, "required", parallel=parallel)
            case kind:
                return ToolChoice(tools, kind or "auto", parallel=parallel)
