"""Detokenization of whole sequences or token by token, with the same result however the sequence is split.

A token stands for bytes. Bytes of an incomplete character are held until the rest arrives. Invalid bytes become
replacement characters as soon as they are known to be invalid.
"""

import re
from codecs import utf_8_decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import filterfalse
from types import MappingProxyType

REPLACEMENT = "\ufffd"
_PART = 4096
"""Tokens of a part of a long text, which take about a millisecond."""
_LONGEST = 4
"""Length in bytes of the longest UTF-8 character."""

Piece = str | bytes
"""Contribution of a token to a text: whole characters, or bytes that include partial characters."""
Spell = Callable[[int, bool], Piece]
"""Returns the piece of a token id. The flag marks the first token of a text, which may drop a leading space."""


class Decode:
    """Decodes token ids to text, with a cache of each token's piece."""

    def __init__(
        self,
        spell: Spell,
        special: Mapping[int, str] = MappingProxyType({}),
        bytewise: bool = False,
        with_special: "Decode | None" = None,
    ) -> None:
        """Create a decoder.

        Args:
            spell: returns the piece of a token; empty for a token without text.
            special: names of the special tokens, by id.
            bytewise: whether each invalid byte becomes its own replacement character, as with byte-fallback
                tokenizers; otherwise the bytes of an incomplete character become a single one.
            with_special: decoder that shows special tokens by name; None if this one does.
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
        """Return the text of the tokens."""
        detokenizer = Detokenizer(self)
        return "".join(map(detokenizer.push, tokens)) + detokenizer.flush()

    def settled(self, tokens: Sequence[int]) -> Iterator[str]:
        """Yield in parts the text that further tokens cannot change, without an incomplete character at its end."""
        detokenizer = Detokenizer(self)
        for start in range(0, len(tokens), _PART):
            yield "".join(map(detokenizer.push, tokens[start : start + _PART]))

    def first(self, token: int) -> Piece:
        """Return the piece of a token at the start of a text."""
        return self._spell(token, True)

    def inner(self, token: int) -> Piece:
        """Return the piece of a token after other tokens."""
        piece = self._inner.get(token)
        if piece is None:
            piece = self._inner[token] = self._spell(token, False)
        return piece

    def characters(self, data: bytes, final: bool) -> tuple[str, bytes]:
        """Decode bytes; return the text and the trailing incomplete character, which is empty if `final` is true."""
        text = ""
        while True:
            try:
                whole, used = utf_8_decode(data, "strict" if self._bytewise else "replace", final)
                return text + whole, data[used:]
            except UnicodeDecodeError as error:
                text += data[: error.start].decode() + REPLACEMENT * (error.end - error.start)
                data = data[error.end :]


class Detokenizer:
    """Incremental decoder of a growing token sequence."""

    def __init__(self, decode: Decode, before: Sequence[int] = ()) -> None:
        """Args: before: tokens before the output, which may end in a character that the output completes.

        Special tokens, which have no text, are skipped fast: a caller may send very many.
        """
        self.incomplete = 0
        """Number of last tokens whose character is incomplete."""
        self._decode = decode
        self._begun = any(map(decode.inner, filterfalse(decode.special.__contains__, before)))
        self._pending = _half_character(decode, before)

    def special(self, token: int) -> str:
        """Return the name of a special token; empty for any other token."""
        return self._decode.special.get(token, "")

    def mark(self, token: int) -> str:
        """Return the mark of a special token, which no text contains; empty for any other token."""
        return _mark(token) if token in self._decode.special else ""

    def marked(self, text: str) -> str:
        """Return the text with names of special tokens replaced by their marks."""
        return self._decode.names.sub(lambda name: _mark(self._decode.special_ids[name[0]]), text)

    def push(self, token: int) -> str:
        """Add a token and return the text that it completes, which is empty inside a character."""
        piece = self._decode.inner(token) if self._begun else self._first(token)
        if isinstance(piece, str) and not self._pending:
            return piece
        data = _bytes(piece)
        text, self._pending = self._decode.characters(self._pending + data, False)
        goes_on = len(self._pending) > len(data)
        self.incomplete = (self.incomplete + 1 if goes_on else 1) if self._pending else 0
        return text

    def flush(self) -> str:
        """End the text; return replacement characters for the bytes still held."""
        text, self._pending = self._decode.characters(self._pending, True)
        self.incomplete = 0
        return text

    def _first(self, token: int) -> Piece:
        self._begun = bool(self._decode.inner(token))
        return self._decode.first(token)


def _mark(token: int) -> str:
    """Encode the token id as two surrogates, which decoded text never contains."""
    return chr(0xD800 + (token >> 10)) + chr(0xDC00 + (token & 0x3FF))


def _half_character(decode: Decode, tokens: Sequence[int]) -> bytes:
    """Return the bytes of an incomplete character at the end of the tokens' text."""
    data = b""
    for token in filterfalse(decode.special.__contains__, reversed(tokens)):
        data = _bytes(decode.inner(token)) + data
        if len(data) >= _LONGEST:
            break
    return decode.characters(data, False)[1]


def _bytes(piece: Piece) -> bytes:
    return piece.encode() if isinstance(piece, str) else piece
