"""A tool that writes a file, and a call of it with arguments that are hard to parse."""

from typing import Any

WRITE: Any = {
    "type": "function",
    "function": {
        "name": "write",
        "description": None,
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}, "text": {"type": "string"}}},
    },
    "cache_control": {"type": "ephemeral"},
}
CALL = '<tool_call>\n{"name": "write", "arguments": {"path": "a.py", "text": "é \\"x\\" }</tool"}}\n</tool_call>'
