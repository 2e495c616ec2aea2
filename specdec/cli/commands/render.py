"""Print tokens by origin, each with a colour and a distinct shape.

On a terminal the shapes are underline, bold, italics and strike-through, and NO_COLOR removes only the colours. In a
pipe or a file they are marks around the text.
"""

import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from rich.console import Console
from rich.text import Text

from specdec.client.events import GenerationResult, RoundEvent
from specdec.rules.speculation import Origin

REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class TokenStyle:
    """Style of one kind of token."""

    style: str
    """A rich style, for a terminal."""
    marks: tuple[str, str]
    """Marks before and after the text, for pipes and files."""


STYLES: dict[str, TokenStyle] = {
    Origin.ACCEPTED: TokenStyle("green underline", ("[", "]")),
    Origin.RECOVERED: TokenStyle("yellow bold", ("{", "}")),
    Origin.BONUS: TokenStyle("cyan italic", ("<", ">")),
    Origin.PLAIN: TokenStyle("", ("", "")),
    REJECTED: TokenStyle("red strike dim", ("~", "~")),
}


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of consecutive tokens of one kind."""

    kind: str
    text: str


def pieces(round_: RoundEvent, show_draft: bool) -> Iterator[Piece]:
    """Text of a round in reading order: accepted drafts, rejected drafts, then the token that replaces them."""
    kept = [Piece(token.origin, token.text) for token in round_.tokens]
    rejected = [Piece(REJECTED, text) for text in round_.rejected] if show_draft else []
    before = [index for index, piece in enumerate(kept) if piece.kind == Origin.RECOVERED]
    place = before[0] if before else len(kept)
    return _joined([*kept[:place], *rejected, *kept[place:]])


def _joined(parts: Iterable[Piece]) -> Iterator[Piece]:
    for kind, group in groupby(parts, key=lambda piece: piece.kind):
        text = "".join(piece.text for piece in group)
        if text:
            yield Piece(kind, text)


def paint(piece: Piece, styled: bool) -> Text:
    """A piece in its style, or between its marks."""
    style = STYLES[piece.kind]
    shown = printable(piece.text)
    if styled:
        return Text(shown, style=style.style)
    return Text(shown.join(style.marks))


def printable(text: str) -> str:
    """Escape control characters except newlines and tabs, so that the text cannot control the terminal."""
    return "".join(_spell(character) for character in text)


def _spell(character: str) -> str:
    if character in "\n\t" or unicodedata.category(character) not in {"Cc", "Cs"}:
        return character
    return character.encode("unicode_escape").decode()


def has_styles(console: Console) -> bool:
    return console.is_terminal and not console.is_dumb_terminal


def legend(styled: bool, show_draft: bool) -> Text:
    """One line with each kind of token in its style."""
    kinds = [*Origin, REJECTED] if show_draft else list(Origin)
    return Text("  ").join(paint(Piece(kind, str(kind)), styled) for kind in kinds)


def show_round(console: Console, round_: RoundEvent, show_draft: bool) -> None:
    """Print a round after the previous one."""
    styled = has_styles(console)
    for piece in pieces(round_, show_draft):
        console.print(paint(piece, styled), end="", soft_wrap=True)


def statistics(result: GenerationResult) -> str:
    finished = result.finished
    parts = [
        f"{finished.completion_tokens} tok",
        f"{result.tokens_per_second:.0f} tok/s",
        f"{result.tokens_per_round:.1f} tok/round",
        "no drafts" if result.accepted_share is None else f"{result.accepted_share:.0%} accepted".replace("%", " %"),
        *(["lossy"] if finished.lossy else []),
        *(f"no draft in {_rounds(count)}: {reason}" for reason, count in sorted(finished.fallbacks.items())),
    ]
    return " · ".join(parts)


def _rounds(count: int) -> str:
    return "1 round" if count == 1 else f"{count} rounds"
