"""A grammar that the text of a generation must follow, as sent from gateway to verifier and drafter.

The ids that the grammar allows at a position form a mask: one bit for each id of the vocabulary, the lowest bit of each
byte first, padded to 8-byte words.
"""

import hashlib
import re
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from specdec.errors import FieldInvalid

MAX_GRAMMAR_BYTES = 64 * 1024
"""Longest text of a grammar, in UTF-8."""


def mask_bytes(vocab_size: int) -> int:
    """Length of a mask, in bytes."""
    return -(-vocab_size // 64) * 8


def spelled(text: str, special: Collection[str]) -> list[str]:
    """Split a text into the names of special tokens and the text between them."""
    if not special:
        return [text]
    names = sorted(special, key=len, reverse=True)
    return [piece for piece in re.split(f"({'|'.join(map(re.escape, names))})", text) if piece]


def token_name(name: str) -> str:
    """Name of a special token in a Lark grammar."""
    inside = re.sub(r"[<>\s]", "_", name)
    return name if re.fullmatch(r"<[^<>\[\]\s]+>", name) else f"<|{inside}|>"


class GrammarKind(StrEnum):
    """The language that a grammar's text is written in."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"
    ANY = "any"
    """Any text: only the thinking before it is limited."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """A language over text. The output is a sentence of it, or the beginning of one if the token limit ends it.

    Raises:
        FieldInvalid: the text is empty or too long. The text is not compiled here.
    """

    kind: GrammarKind
    text: str
    behind: str = ""
    """Tag after which the grammar applies; with two lines, the tags that open and close the text before the grammar.

    Empty applies the grammar from the start. Before it any text is allowed, but no end of the output. A third line is
    the text before the grammar when the model does not think. Tabs separate spellings of a tag, the one to force first.
    """
    budget: int | None = None
    """Most tokens before the tag, after which the tag is forced; None is no limit."""

    def __post_init__(self) -> None:
        size = len(self.text.encode(errors="replace"))
        if not 0 < size <= MAX_GRAMMAR_BYTES:
            raise FieldInvalid(f"a grammar has 1 to {MAX_GRAMMAR_BYTES} bytes, got {size}", "grammar")
        if self.budget is not None and (self.budget < 0 or not self.behind):
            raise FieldInvalid("a budget is at least 0 and needs the tag that closes the thinking", "grammar")
        if self.kind is GrammarKind.ANY and self.budget is None:
            raise FieldInvalid("a grammar of any text needs a budget", "grammar")

    @property
    def digest(self) -> str:
        """SHA-256 in hex; services with equal digests mask the same tokens."""
        behind = f"\n\0{self.behind}" if self.behind else ""
        budget = "" if self.budget is None else f"\n\0\0{self.budget}"
        return hashlib.sha256(f"{self.kind}\n{self.text}{behind}{budget}".encode(errors="replace")).hexdigest()
