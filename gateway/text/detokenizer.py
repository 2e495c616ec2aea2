"""The text of token ids, whole or token by token: the same text, however it is cut.

A token stands for bytes, which may be part of a character: they wait for the rest of it. Bytes that are no character
are shown as replacement characters, as soon as that is certain.
"""

import re
from codecs import utf_8_decode
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

REPLACEMENT = "\ufffd"
_LONGEST = 4
"""Bytes of the longest character in UTF-8."""

Piece = str | bytes
"""What a token adds to a text: whole characters, or bytes of which some are part of a character."""
Spell = Callable[[int, bool], Piece]
"""Gives the piece of a token id; the flag says whether it is the first of its text, where a space may be dropped."""


class Decode:
    """Gives the text of token ids when it is called, and the piece of each; it remembers the pieces."""

    def __init__(
        self,
        spell: Spell,
        special: Mapping[int, str] = MappingProxyType({}),
        bytewise: bool = False,
        with_special: "Decode | None" = None,
    ) -> None:
        """Spell tokens one by one.

        Args:
            spell: the piece of a token; empty for one that has no text.
            special: the names of the special tokens, by their ids.
            bytewise: whether every byte that is part of no character is a replacement character of its own, as where a
                tokenizer falls back to bytes; otherwise the bytes that began a character are one together.
            with_special: decodes the same with special tokens shown by their names; None where this one does.
        """
        self.with_special = with_special or self
        self.special = special
        self.special_ids = {name: token for token, name in special.items()}
        self.names = re.compile("|".join(map(re.escape, sorted(self.special_ids, key=len, reverse=True))) or "(?!)")
        """Matches the names of special tokens."""
        self._spell = spell
        self._bytewise = bytewise
        self._inner: dict[int, Piece] = {}

    def __call__(self, tokens: Sequence[int]) -> str:
        """The text of all the tokens."""
        detokenizer = Detokenizer(self)
        return "".join(map(detokenizer.push, tokens)) + detokenizer.flush()

    def settled(self, tokens: Sequence[int]) -> str:
        """The text of the tokens that no further token can change: without half a character at its end."""
        return "".join(map(Detokenizer(self).push, tokens))

    def first(self, token: int) -> Piece:
        """The piece of a token with which a text begins."""
        return self._spell(token, True)

    def inner(self, token: int) -> Piece:
        """The piece of a token that stands behind others."""
        piece = self._inner.get(token)
        if piece is None:
            piece = self._inner[token] = self._spell(token, False)
        return piece

    def characters(self, data: bytes, final: bool) -> tuple[str, bytes]:
        """The characters of bytes, and the bytes at their end that may be half of one, of which `final` leaves none."""
        text = ""
        while True:
            try:
                whole, used = utf_8_decode(data, "strict" if self._bytewise else "replace", final)
                return text + whole, data[used:]
            except UnicodeDecodeError as error:
                text += data[: error.start].decode() + REPLACEMENT * (error.end - error.start)
                data = data[error.end :]


class Detokenizer:
    """The text of a growing token sequence, token by token."""

    def __init__(self, decode: Decode, before: Sequence[int] = ()) -> None:
        """`before` are the tokens in front of the output; the output may go on with half a character at their end."""
        self.incomplete = 0
        """How many of the last tokens wait for the rest of their character."""
        self._decode = decode
        self._begun = any(map(decode.inner, before))
        self._pending = _half_character(decode, before)

    def special(self, token: int) -> str:
        """The name of a special token; empty for any other token."""
        return self._decode.special.get(token, "")

    def mark(self, token: int) -> str:
        """What stands for a special token that has no text, and in no text; empty for any other token."""
        return _mark(token) if token in self._decode.special else ""

    def marked(self, text: str) -> str:
        """The text with the marks of the special tokens that it names."""
        return self._decode.names.sub(lambda name: _mark(self._decode.special_ids[name[0]]), text)

    def push(self, token: int) -> str:
        """Add a token; returns the text that is certain with it, which is empty inside a character."""
        piece = self._decode.inner(token) if self._begun else self._first(token)
        if isinstance(piece, str) and not self._pending:
            return piece
        data = _bytes(piece)
        text, self._pending = self._decode.characters(self._pending + data, False)
        goes_on = len(self._pending) > len(data)
        self.incomplete = (self.incomplete + 1 if goes_on else 1) if self._pending else 0
        return text

    def flush(self) -> str:
        """The end of the text: the bytes that still wait are no character."""
        text, self._pending = self._decode.characters(self._pending, True)
        self.incomplete = 0
        return text

    def _first(self, token: int) -> Piece:
        self._begun = bool(self._decode.inner(token))
        return self._decode.first(token)


def _mark(token: int) -> str:
    """The token id as two surrogates, which are in no text that comes from bytes."""
    return chr(0xD800 + (token >> 10)) + chr(0xDC00 + (token & 0x3FF))


def _half_character(decode: Decode, tokens: Sequence[int]) -> bytes:
    """The bytes of half a character at the end of the tokens' text."""
    data = b""
    for token in reversed(tokens):
        data = _bytes(decode.inner(token)) + data
        if len(data) >= _LONGEST:
            break
    return decode.characters(data, False)[1]


def _bytes(piece: Piece) -> bytes:
    return piece.encode() if isinstance(piece, str) else piece
