"""Tokens for the eye: every origin has a colour and, apart from colour, a shape of its own.

A terminal shows underline, bold, italics and strike-through (NO_COLOR takes away the colours alone); anything else, a
pipe or a file, gets marks around the text.
"""

import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from rich.console import Console
from rich.text import Text

from specdec.cli.events import Outcome, Round
from specdec.rules.params import Origin

REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class Look:
    """How one kind of token is told from the others."""

    style: str
    marks: tuple[str, str]


LOOKS: dict[str, Look] = {
    Origin.ACCEPTED: Look("green underline", ("[", "]")),
    Origin.RECOVERED: Look("yellow bold", ("{", "}")),
    Origin.BONUS: Look("cyan italic", ("<", ">")),
    Origin.PLAIN: Look("", ("", "")),
    REJECTED: Look("red strike dim", ("~", "~")),
}


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of one kind."""

    kind: str
    text: str


def pieces(round_: Round, show_draft: bool) -> Iterator[Piece]:
    """A round's text in reading order: accepted, then the rejected drafts, then what was put in their place."""
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
    """A piece with its style, or between its marks."""
    look = LOOKS[piece.kind]
    shown = printable(piece.text)
    if styled:
        return Text(shown, style=look.style)
    return Text(shown.join(look.marks))


def printable(text: str) -> str:
    """The text with every control character but line ends and tabs spelt out: output cannot drive the terminal."""
    return "".join(_spell(character) for character in text)


def _spell(character: str) -> str:
    if character in "\n\t" or unicodedata.category(character) not in {"Cc", "Cs"}:
        return character
    return character.encode("unicode_escape").decode()


def has_styles(console: Console) -> bool:
    """Whether styles will show on it."""
    return console.is_terminal and not console.is_dumb_terminal


def legend(styled: bool, show_draft: bool) -> Text:
    """What each look means."""
    kinds = [*Origin, REJECTED] if show_draft else list(Origin)
    return Text("  ").join(paint(Piece(kind, str(kind)), styled) for kind in kinds)


def show_round(console: Console, round_: Round, show_draft: bool) -> None:
    """Print one round where the last one ended."""
    styled = has_styles(console)
    for piece in pieces(round_, show_draft):
        console.print(paint(piece, styled), end="", soft_wrap=True)


def statistics(outcome: Outcome) -> str:
    """One line of what it amounts to."""
    finished = outcome.finished
    parts = [
        f"{finished.completion_tokens} tok",
        f"{outcome.tokens_per_second:.0f} tok/s",
        f"{outcome.tokens_per_round:.1f} tok/round",
        "no drafts" if outcome.acceptance is None else f"{outcome.acceptance:.0%} accepted".replace("%", " %"),
        *(["lossy"] if finished.lossy else []),
        *(f"{count} rounds without a draft: {reason}" for reason, count in sorted(finished.fallbacks.items())),
    ]
    return " · ".join(parts)
