"""Text or bytes of single tokens of a Hugging Face tokenizer, including tokens that are part of a character."""

import re
from string import ascii_letters
from typing import Any

from gateway.text.detokenizer import REPLACEMENT, Decode, Piece

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE = "\u2581"
"""SentencePiece's character for a space."""
_HALF = ("<0xE2>", "<0x82>")
"""First two byte tokens of a three-byte character."""


class Spelling:
    """Computes the piece of each token by decoding the token between two others.

    Decoders of the tokenizers library for language models work token by token, except at the beginning of a text and
    where several bytes form a character.
    """

    def __init__(self, tokenizer: Any, special: bool = False) -> None:
        """Args: tokenizer: a Hugging Face tokenizer; special: whether to show special tokens by name."""
        self._tokenizer = tokenizer
        self._skip = not special
        self._context = _context(tokenizer)
        self._before = self._decoded(*self._context)
        self._behind = self._decoded(*self._context, *self._context).removeprefix(self._before)

    def __call__(self, token: int, first: bool) -> Piece:
        """Return the piece of a token; empty for a hidden special token and for an unknown id."""
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
    """Return a decoder equivalent to the tokenizer's, with a variant that shows special tokens."""
    names = {token: added.content for token, added in tokenizer.added_tokens_decoder.items() if added.special}
    bytewise = _falls_back_to_bytes(tokenizer)
    with_special = Decode(Spelling(tokenizer, special=True), bytewise=bytewise)
    return Decode(Spelling(tokenizer), names, bytewise, with_special)


def token_bytes(tokenizer: Any, token: int) -> bytes:
    """Return the token's text in UTF-8, or the raw bytes of a token that is part of a character.

    Args:
        tokenizer: a Hugging Face tokenizer.
        token: an id of its vocabulary; a special token yields its name.
    """
    written = _written(tokenizer, token)
    if _SPACE in written:
        # Decoding the token alone would treat it as the start of a text and drop its space.
        return written.replace(_SPACE, " ").encode()
    text = _decoded(tokenizer, [token], False)
    return (_raw(written) if REPLACEMENT in text else b"") or text.encode()


def longest_token(tokenizer: Any) -> int:
    """Return the length in bytes of the vocabulary's longest token."""
    spelled = sorted(((len(written.encode()), token) for written, token in tokenizer.get_vocab().items()), reverse=True)
    longest = 1
    for bound, token in spelled:  # a token's spelling is never shorter than its bytes
        if bound <= longest:
            break
        longest = max(longest, len(token_bytes(tokenizer, token)))
    return longest


def _context(tokenizer: Any) -> tuple[int, ...]:
    """Return a plain-text token to decode other tokens between; empty if the vocabulary has none."""
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
    """Return the bytes of a token spelled byte by byte; empty for any other token."""
    if match := _BYTE.fullmatch(written):
        return bytes.fromhex(match[1])
    return bytes(_ALPHABET[char] for char in written) if all(char in _ALPHABET for char in written) else b""


def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's byte alphabet: printable bytes map to themselves, the others to characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(0x100)) - set(printable))
    return {chr(byte): byte for byte in printable} | {chr(0x100 + at): byte for at, byte in enumerate(others)}


_ALPHABET = _byte_alphabet()
