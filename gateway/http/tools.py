"""The fields of a chat that speak of tools: what is offered, which must be called, and what was called before."""

import json
from typing import Annotated, Any, Literal

from pydantic import Field

from gateway.http.body import Body
from gateway.tools.choice import TOOL_NAME, ToolChoice
from gateway.tools.values import MAX_TOOLS, Tool, ToolCall

_NAME = Annotated[str, Field(pattern=TOOL_NAME)]


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
        return ToolCall.earlier(self.function.name, self.function.arguments, self.id)


class ToolsBody(Body):
    """The fields of a chat that offer tools."""

    tools: Annotated[list[ToolBody], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None

    def asked(self) -> ToolChoice:
        """What is offered, and what must be called."""
        tools = tuple(each.tool() for each in self.tools or ())
        parallel = self.parallel_tool_calls is not False
        if isinstance(self.tool_choice, NamedTool):
            return ToolChoice(tools, name=self.tool_choice.function.name, parallel=parallel)
        return ToolChoice(tools, self.tool_choice or "auto", parallel=parallel)
