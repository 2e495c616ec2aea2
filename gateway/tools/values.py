"""A tool that a caller offers, and a call of one."""

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may ask the caller to call."""

    name: str
    description: str
    parameters: str
    """The JSON Schema of its arguments, as text."""
    strict: bool
    """Whether the arguments of a call must be of the schema."""

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of its arguments."""
        schema: dict[str, Any] = json.loads(self.parameters)
        return schema

    @property
    def described(self) -> dict[str, Any]:
        """The tool as chat templates read it, which is as OpenAI's API spells it."""
        function = {"name": self.name, "description": self.description, "parameters": self.schema}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model asked for."""

    name: str
    arguments: str
    """A JSON object, as text."""
    id: str = ""
    """The caller's name of the call; empty where the model has just written it."""
