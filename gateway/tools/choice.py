"""Tools that a request offers, and which of them must be called; shared by HTTP and gRPC."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gateway.tools.formats import ToolFormat
from gateway.tools.values import Tool
from specdec.errors import FieldInvalid, FieldRequired
from specdec.sampling.grammar import Grammar

TOOL_NAME = r"^[a-zA-Z0-9_.:/-]{1,128}$"


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Tools of a request, and the rules for calling them."""

    tools: tuple[Tool, ...] = ()
    kind: Literal["none", "auto", "required"] = "auto"
    """Whether the model may not, may, or must call a tool."""
    name: str = ""
    """Name of the only tool that must be called; empty if the model may choose."""
    parallel: bool = True
    """Whether several calls are allowed."""

    def only(self, names: Sequence[str]) -> "ToolChoice":
        """Return a copy restricted to the named tools; raises FieldInvalid for an unknown name."""
        for name in names:
            if name not in [tool.name for tool in self.tools]:
                raise FieldInvalid(
                    f"tool_choice.allowed_tools names {name!r}, which is no tool of tools", "tool_choice"
                )
        return replace(self, tools=tuple(tool for tool in self.tools if tool.name in names))

    def offered(self) -> tuple[Tool, ...]:
        """Return the tools that may be called; empty if the kind is `none`.

        Raises:
            FieldInvalid: two tools share a name, a name is malformed, or the required tool is missing.
            FieldRequired: a call is required, but there are no tools.
        """
        names = [tool.name for tool in self.tools]
        if len(set(names)) < len(names):
            raise FieldInvalid("tools: two tools have one name", "tools")
        for index, name in enumerate(names):
            if re.fullmatch(TOOL_NAME, name) is None:
                raise FieldInvalid(f"tools[{index}].name must be of the form {TOOL_NAME}", f"tools[{index}].name")
        if self.name and self.name not in names:
            raise FieldInvalid("tool_choice names no tool of tools", "tool_choice")
        if self.kind == "required" and not names:
            raise FieldRequired("tool_choice is required, and there are no tools", "tools")
        return () if self.kind == "none" else self.tools

    def grammar(self, tool_format: ToolFormat, answer: Grammar | None = None) -> Grammar | None:
        """Return the grammar for required or strict calls, or for calls that are alternatives to a form; None if none
        apply.

        Args:
            tool_format: format in which the model writes calls.
            answer: form of an answer without calls.

        Raises:
            UnsupportedParameter: calls in this format cannot be bound to a grammar.
        """
        if self.name:
            named = [tool for tool in self.tools if tool.name == self.name]
            return tool_format.grammar(named, forced=True, parallel=False)
        if self.kind == "required" or answer or any(tool.strict for tool in self.tools):
            forced = self.kind == "required"
            return tool_format.grammar(self.tools, forced=forced, parallel=self.parallel, answer=answer)
        return None
