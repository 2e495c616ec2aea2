"""The bytes that one token stands for, also where they are only part of a character."""

import re
from typing import Any

from gateway.text.detokenizer import REPLACEMENT

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE = "\u2581"
"""How SentencePiece writes a space."""


def token_bytes(tokenizer: Any, token: int) -> bytes:
    """The token's own text in UTF-8, or the raw bytes of a token that is part of a character.

    Args:
        tokenizer: a Hugging Face tokenizer.
        token: an id of its vocabulary; that of a special token stands for its name.
    """
    written = str(tokenizer.convert_ids_to_tokens(token))
    if _SPACE in written:
        # On its own the token would be decoded as the beginning of a text, where a space is dropped.
        return written.replace(_SPACE, " ").encode()
    text = str(tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False))
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
