"""Parser of gpt-oss's channels for thinking, answer and calls."""

import re

from gateway.tools.parsers import Piece, ToolParser, overlap
from gateway.tools.values import Thought, ToolCall

_ENDS = ("<|end|>", "<|return|>", "<|call|>")
_TAGS = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", *_ENDS)
_TO = "to="
"""Beginning of the recipient in a header."""
_CALLED = re.compile(r"\bto=(?:functions\.)?(?P<name>[A-Za-z0-9_.:/-]+)")


class HarmonyParser(ToolParser):
    """Parses the messages of one answer, each a header followed by text."""

    def __init__(self) -> None:
        super().__init__(self._read_beginning)
        self._channel = "final"
        self._name = ""
        """Name of the current call, whose arguments are no object."""

    def _ended(self, rest: str) -> list[Piece]:
        for tag in _ENDS:
            rest = rest.partition(tag)[0]
        if self._step == self._read_other:
            return self._called_with(rest)
        is_header = self._step == self._read_header and any(tag in rest for tag in _TAGS)
        return [] if is_header else self._shown(rest)

    def _end_call(self) -> None:
        self._channel, self._step = "after call", self._read_body

    def _read_beginning(self) -> list[Piece] | None:
        """Read the first header, whose beginning `<|start|>assistant` is in the prompt."""
        begun = self._held.lstrip()
        if len(begun) < len(_TO) and _TO.startswith(begun):
            return None
        self._step = self._read_header if begun.startswith(_TO) else self._read_body
        return []

    def _read_body(self) -> list[Piece] | None:
        found = min(((at, tag) for tag in _TAGS if (at := self._held.find(tag)) >= 0), default=None)
        if found is None:
            certain = self._held[: len(self._held) - max(overlap(self._held, tag) for tag in _TAGS)]
            self._held = self._held[len(certain) :]
            return self._shown(certain) if certain else None
        text, self._held = self._held[: found[0]], self._held[found[0] + len(found[1]) :]
        if found[1] in ("<|start|>", "<|channel|>"):
            self._held, self._step = found[1] + self._held, self._read_header
        return self._shown(text)

    def _read_header(self) -> list[Piece] | None:
        header, message, rest = self._held.partition("<|message|>")
        if not message:
            return None
        called = _CALLED.search(header)
        if called is not None and rest.lstrip().startswith("{"):
            return self._begin_call(called["name"], rest.lstrip())
        if called is not None and not rest.strip():
            return None
        if called is not None:
            self._held, self._step, self._name = rest, self._read_other, called["name"]
            return []
        self._held, self._step = rest, self._read_body
        self._channel = "analysis" if "analysis" in header else "final"
        return []

    def _read_other(self) -> list[Piece] | None:
        """Read the arguments of a call that are no object: missing, encoded twice, or a text."""
        found = min((at for tag in _ENDS if (at := self._held.find(tag)) >= 0), default=None)
        if found is None:
            return None
        text, self._held = self._held[:found], self._held[found:]
        self._end_call()
        return self._called_with(text)

    def _called_with(self, text: str) -> list[Piece]:
        return [self._call(ToolCall.earlier(self._name, text, ""))]

    def _shown(self, text: str) -> list[Piece]:
        if not text or (self._channel == "after call" and not text.strip()):
            return []
        return [Thought(text) if self._channel == "analysis" else text]
