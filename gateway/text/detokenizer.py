"""The text of a growing token sequence, token by token, for any tokenizer that can decode a list of ids."""

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"
CONTEXT = 6
"""How many tokens before a token can change its text."""

Decode = Callable[[Sequence[int]], str]


class Detokenizer:
    """Decodes the last tokens without and with a new one; the difference is the new token's text.

    This window begins a few tokens back, so that spaces and combined characters are decoded as in the whole text.
    Text that ends in a replacement character may be half of a character: its tokens wait for the rest.
    """

    def __init__(self, decode: Decode, before: Sequence[int] = ()) -> None:
        """`decode` gives the text of token ids; `before` are the tokens in front of the output."""
        self._decode = decode
        self._window = list(before[-CONTEXT:])
        self._known = len(self._window)
        self._shown = decode(self._window) if self._window else ""

    @property
    def incomplete(self) -> int:
        """How many of the last tokens wait for the rest of their character."""
        return len(self._window) - self._known

    def push(self, token: int) -> str:
        """Add a token; returns the text that is complete with it, which is empty inside a character."""
        self._window.append(token)
        text = self._decode(self._window)
        if text.endswith(REPLACEMENT):
            return ""
        new = text[len(self._shown) :]
        self._advance(text)
        return new

    def flush(self) -> str:
        """The text of the tokens that still wait, without the half character at their end."""
        if not self.incomplete:
            return ""
        text = self._decode(self._window).rstrip(REPLACEMENT)
        new = text[len(self._shown) :]
        self._known = len(self._window)
        return new

    def _advance(self, text: str) -> None:
        """All tokens of the window have their text: keep the last ones as the context of the next token."""
        if len(self._window) > 2 * CONTEXT:
            self._window = self._window[-CONTEXT:]
            text = self._decode(self._window)
        self._known = len(self._window)
        self._shown = text
