"""The fields of a chat that speak of tools: what is offered, which must be called, and what was called before."""

import json
from typing import Annotated, Any, Literal

from pydantic import Field

from gateway.http.body import Body
from gateway.tools.formats import ToolFormat
from gateway.tools.values import Tool, ToolCall
from specdec.errors import FieldInvalid, FieldRequired, UnsupportedParameter
from specdec.rules.grammar import Grammar

MAX_TOOLS = 128
_NAME = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


class FunctionBody(Body):
    """A function that may be called."""

    name: _NAME
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolBody(Body):
    """A tool; OpenAI has one type of them."""

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
    """A function and its arguments, a JSON object as text."""

    name: str
    arguments: str


class ToolCallBody(Body):
    """A call in an earlier answer."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None

    def call(self) -> ToolCall:
        """The call; raises FieldInvalid when its arguments are no JSON object."""
        try:
            arguments = json.loads(self.function.arguments or "{}")
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            raise FieldInvalid("messages: the arguments of a tool call must be a JSON object, as text", "messages")
        return ToolCall(self.function.name, json.dumps(arguments, ensure_ascii=False), self.id)


class ToolsBody(Body):
    """The fields of a chat that offer tools."""

    tools: Annotated[list[ToolBody], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None

    def offered(self) -> tuple[Tool, ...]:
        """The tools that may be called; none where `tool_choice` is none.

        Raises:
            FieldInvalid: two have one name, or the one that must be called is not among them.
            FieldRequired: one must be called, and there is none.
        """
        tools = tuple(each.tool() for each in self.tools or ())
        names = [tool.name for tool in tools]
        if len(set(names)) < len(names):
            raise FieldInvalid("tools: two tools have one name", "tools")
        if isinstance(self.tool_choice, NamedTool):
            if self.tool_choice.function.name not in names:
                raise FieldInvalid("tool_choice names no tool of tools", "tool_choice")
        elif self.tool_choice == "required" and not tools:
            raise FieldRequired("tool_choice is required, and there are no tools", "tools")
        return () if self.tool_choice == "none" else tools

    def tool_grammar(self, tools: tuple[Tool, ...], tool_format: ToolFormat) -> tuple[str, Grammar] | None:
        """The grammar of the calls that must be made, or that must be strict, and its field; None where there are none.

        Raises:
            UnsupportedParameter: calls in this format cannot be bound to a grammar.
        """
        parallel, choice = self.parallel_tool_calls is not False, self.tool_choice
        if isinstance(choice, NamedTool):
            tools = tuple(tool for tool in tools if tool.name == choice.function.name)
            return "tools", tool_format.grammar(tools, forced=True, parallel=False)
        if choice == "required":
            return "tools", tool_format.grammar(tools, forced=True, parallel=parallel)
        if any(tool.strict for tool in tools):
            return "tools", tool_format.grammar(tools, forced=False, parallel=parallel)
        return None


def only_one(form: tuple[str, Grammar] | None, tools: tuple[Tool, ...]) -> None:
    """Raise UnsupportedParameter where the output shall have a form and there are tools to call."""
    if form and tools:
        raise UnsupportedParameter(f"{form[0]} is not supported beside tools", form[0])
