"""Text of a growing token sequence, token by token, for any tokenizer that can decode a list of ids."""

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"
CONTEXT = 6
"""Tokens before the output that can change the text of its first ones."""

Decode = Callable[[Sequence[int]], str]


class Detokenizer:
    """Decodes a short window twice, without and with the new token; the difference is the token's text.

    The window starts a few tokens back, so that spaces and joined characters come out as they do in the whole. Text
    that ends in a replacement character may be half of a character: it waits for the rest.
    """

    def __init__(self, decode: Decode, before: Sequence[int] = ()) -> None:
        self._decode = decode
        self._window = list(before[-CONTEXT:])
        self._known = len(self._window)
        self._shown = decode(self._window) if self._window else ""

    @property
    def incomplete(self) -> int:
        """How many of the last tokens wait for the rest of a character."""
        return len(self._window) - self._known

    def push(self, token: int) -> str:
        """The text that is complete with this token; empty inside a character."""
        self._window.append(token)
        text = self._decode(self._window)
        if text.endswith(REPLACEMENT):
            return ""
        new = text[len(self._shown) :]
        self._settle(text)
        return new

    def flush(self) -> str:
        """The text of the tokens that still wait, without the half character they end in."""
        if not self.incomplete:
            return ""
        text = self._decode(self._window).rstrip(REPLACEMENT)
        new = text[len(self._shown) :]
        self._known = len(self._window)
        return new

    def _settle(self, text: str) -> None:
        """Everything in the window has its text: keep the last tokens as the context of the next."""
        if len(self._window) > 2 * CONTEXT:
            self._window = self._window[-CONTEXT:]
            text = self._decode(self._window)
        self._known = len(self._window)
        self._shown = text
