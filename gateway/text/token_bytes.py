"""The bytes that one token stands for, also where it is no text on its own."""

import re
from typing import Any

from gateway.text.detokenizer import REPLACEMENT

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE = "\u2581"
"""How SentencePiece writes a space."""


def piece(tokenizer: Any, token: int) -> bytes:
    """UTF-8 of the token's own text, special tokens included; of a token inside a character, the raw bytes.

    Args:
        tokenizer: of Hugging Face.
        token: in its vocabulary.
    """
    written = str(tokenizer.convert_ids_to_tokens(token))
    if _SPACE in written:
        # Alone it would be decoded as the first of a text, where a space is dropped.
        return written.replace(_SPACE, " ").encode()
    text = str(tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False))
    return (_raw(written) if REPLACEMENT in text else b"") or text.encode()


def _raw(written: str) -> bytes:
    """A token as bytes, where its tokenizer spells them; empty otherwise."""
    if match := _BYTE.fullmatch(written):
        return bytes.fromhex(match[1])
    return bytes(_ALPHABET[char] for char in written) if all(char in _ALPHABET for char in written) else b""


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins: a byte that is printable is itself, the others are counted up from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(0x100)) - set(printable))
    return {chr(byte): byte for byte in printable} | {chr(0x100 + at): byte for at, byte in enumerate(others)}


_ALPHABET = _byte_alphabet()
