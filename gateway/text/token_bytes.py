"""What the tokens of a Hugging Face tokenizer stand for, one by one, also where they are only part of a character."""

import re
from string import ascii_letters
from typing import Any

from gateway.text.detokenizer import REPLACEMENT, Decode, Piece

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE = "\u2581"
"""How SentencePiece writes a space."""
_HALF = ("<0xE2>", "<0x82>")
"""Two byte tokens that begin a character of three bytes."""


class Spelling:
    """The piece that each token adds to a text, found by decoding the token between two others.

    Every decoder of the tokenizers library for language models works token by token, except at the beginning of a text,
    and where bytes make a character.
    """

    def __init__(self, tokenizer: Any, special: bool = False) -> None:
        """`special` shows special tokens by their names."""
        self._tokenizer = tokenizer
        self._skip = not special
        self._context = _context(tokenizer)
        self._before = self._decoded(*self._context)
        self._behind = self._decoded(*self._context, *self._context).removeprefix(self._before)

    def __call__(self, token: int, first: bool) -> Piece:
        """The piece; empty for a special token, unless those are shown, and for an id that is no token."""
        text = self._decoded(token) if first else self._inner(token)
        if REPLACEMENT not in text:
            return text
        return _raw(_written(self._tokenizer, token)) or text

    def _inner(self, token: int) -> str:
        text = self._decoded(*self._context, token, *self._context)
        return text.removeprefix(self._before).removesuffix(self._behind)

    def _decoded(self, *tokens: int) -> str:
        return _decoded(self._tokenizer, tokens, self._skip)


def decode_of(tokenizer: Any) -> Decode:
    """Decodes what a tokenizer decodes, as it does, without special tokens and with them."""
    names = {token: added.content for token, added in tokenizer.added_tokens_decoder.items() if added.special}
    bytewise = _falls_back_to_bytes(tokenizer)
    with_special = Decode(Spelling(tokenizer, special=True), bytewise=bytewise)
    return Decode(Spelling(tokenizer), names, bytewise, with_special)


def token_bytes(tokenizer: Any, token: int) -> bytes:
    """The token's own text in UTF-8, or the raw bytes of a token that is part of a character.

    Args:
        tokenizer: a Hugging Face tokenizer.
        token: an id of its vocabulary; that of a special token stands for its name.
    """
    written = _written(tokenizer, token)
    if _SPACE in written:
        # On its own the token would be decoded as the beginning of a text, where a space is dropped.
        return written.replace(_SPACE, " ").encode()
    text = _decoded(tokenizer, [token], False)
    return (_raw(written) if REPLACEMENT in text else b"") or text.encode()


def longest_token(tokenizer: Any) -> int:
    """Bytes of the longest token of a Hugging Face tokenizer's vocabulary."""
    spelled = sorted(((len(written.encode()), token) for written, token in tokenizer.get_vocab().items()), reverse=True)
    longest = 1
    for bound, token in spelled:  # no way of spelling is shorter than the bytes it stands for
        if bound <= longest:
            break
        longest = max(longest, len(token_bytes(tokenizer, token)))
    return longest


def _context(tokenizer: Any) -> tuple[int, ...]:
    """A token with plain text, between two of which any other is decoded; none where the vocabulary has no such one."""
    vocabulary = tokenizer.get_vocab()
    letters = (vocabulary[letter] for letter in ascii_letters if letter in vocabulary)
    others = (token for token in vocabulary.values() if _decoded(tokenizer, [token], True).isalnum())
    return next(((token,) for found in (letters, others) for token in found), ())


def _falls_back_to_bytes(tokenizer: Any) -> bool:
    vocabulary = tokenizer.get_vocab()
    if not all(each in vocabulary for each in _HALF):
        return False
    return _decoded(tokenizer, [vocabulary[each] for each in _HALF], True) == REPLACEMENT * len(_HALF)


def _written(tokenizer: Any, token: int) -> str:
    return str(tokenizer.convert_ids_to_tokens(token))


def _decoded(tokenizer: Any, tokens: Any, skip: bool) -> str:
    return str(tokenizer.decode(list(tokens), skip_special_tokens=skip, clean_up_tokenization_spaces=False))


def _raw(written: str) -> bytes:
    """The bytes of a token that is spelled byte by byte; empty for any other."""
    if match := _BYTE.fullmatch(written):
        return bytes.fromhex(match[1])
    return bytes(_ALPHABET[char] for char in written) if all(char in _ALPHABET for char in written) else b""


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's characters for bytes: a printable byte is its own, the others are numbered from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(0x100)) - set(printable))
    return {chr(byte): byte for byte in printable} | {chr(0x100 + at): byte for at, byte in enumerate(others)}


_ALPHABET = _byte_alphabet()
