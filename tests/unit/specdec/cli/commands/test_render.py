"""Tokens are rendered by their origin, with and without colour."""

import io

import pytest
from rich.console import Console

from specdec.cli.commands import render
from specdec.cli.commands.render import REJECTED, STYLES, Piece
from specdec.client.events import FinishedEvent, GenerationResult, RoundEvent, StartedEvent, Token
from specdec.rules.speculation import Origin
from specdec.sampling.params import FinishReason

ROUND = RoundEvent(
    tokens=(Token(1, "def ", Origin.ACCEPTED), Token(2, "f", Origin.ACCEPTED), Token(3, "(x)", Origin.RECOVERED)),
    rejected=("[y]", "!"),
)


def shown(round_: RoundEvent, show_draft: bool, **options: object) -> str:
    console = Console(file=io.StringIO(), **options)  # type: ignore[arg-type]
    render.show_round(console, round_, show_draft)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_rejected_drafts_stand_before_their_correction() -> None:
    kinds = [piece.kind for piece in render.pieces(ROUND, show_draft=True)]
    assert kinds == [Origin.ACCEPTED, REJECTED, Origin.RECOVERED]


def test_rejected_drafts_without_a_correction_stand_last() -> None:
    cut = RoundEvent((Token(1, "a", Origin.ACCEPTED),), ("b",))
    assert [piece.kind for piece in render.pieces(cut, show_draft=True)] == [Origin.ACCEPTED, REJECTED]


def test_rejected_drafts_are_hidden_unless_asked_for() -> None:
    assert REJECTED not in {piece.kind for piece in render.pieces(ROUND, show_draft=False)}


def test_a_pipe_gets_marks_and_no_escape_codes() -> None:
    assert shown(ROUND, show_draft=True) == "[def f]~[y]!~{(x)}"


def test_a_terminal_gets_styles_and_no_marks() -> None:
    text = shown(ROUND, show_draft=True, force_terminal=True, color_system="standard", _environ={})
    assert "\x1b[4;32mdef f" in text
    assert "~" not in text
    assert "{" not in text


def test_without_colour_the_shapes_remain() -> None:
    text = shown(ROUND, show_draft=True, force_terminal=True, color_system="standard", no_color=True, _environ={})
    assert "\x1b[4mdef f" in text
    assert "32" not in text
    assert "\x1b[2;9m[y]!" in text


def test_no_two_kinds_are_told_apart_by_colour_alone() -> None:
    colours = {"green", "yellow", "cyan", "red"}
    shapes = [tuple(word for word in style.style.split() if word not in colours) for style in STYLES.values()]
    assert len(set(shapes)) == len(shapes)
    assert len({style.marks for style in STYLES.values()}) == len(STYLES)


def test_text_keeps_its_line_ends_and_spaces() -> None:
    plain = RoundEvent((Token(1, "a  \n\n    b ", Origin.PLAIN),), ())
    assert shown(plain, show_draft=False) == "a  \n\n    b "


def test_long_lines_are_not_broken() -> None:
    plain = RoundEvent((Token(1, "word " * 60, Origin.PLAIN),), ())
    assert shown(plain, show_draft=False, width=20) == "word " * 60


def test_model_output_cannot_drive_the_terminal() -> None:
    assert render.printable("\x1b[2J\r\x07ok\n\té") == "\\x1b[2J\\r\\x07ok\n\té"


@pytest.mark.parametrize("styled", [True, False])
def test_the_legend_names_every_kind(styled: bool) -> None:
    legend = render.legend(styled, show_draft=True).plain
    assert all(kind in legend for kind in STYLES)
    assert REJECTED not in render.legend(styled, show_draft=False).plain


def test_markup_in_model_output_is_text() -> None:
    assert render.paint(Piece(Origin.PLAIN, "[bold]x[/bold]"), styled=True).plain == "[bold]x[/bold]"


def result(**changes: object) -> GenerationResult:
    counts = {"completion_tokens": 82, "drafted": 100, "accepted": 68, "rounds": 26, "fallbacks": {}} | changes
    finished = FinishedEvent(FinishReason.STOP, prompt_tokens=3, **counts)  # type: ignore[arg-type]
    return GenerationResult(StartedEvent("g", "demo", 1), (), finished, first_token=0.1, seconds=82 / 61)


def test_statistics_are_one_line() -> None:
    assert render.statistics(result()) == "82 tok · 61 tok/s · 3.2 tok/round · 68 % accepted"


def test_statistics_say_that_lenience_is_lossy() -> None:
    assert render.statistics(result(lossy=True)).endswith("68 % accepted · lossy")


def test_statistics_without_drafts_say_why() -> None:
    line = render.statistics(result(drafted=0, accepted=0, fallbacks={"drafter_unavailable": 26, "late": 1}))
    assert line.endswith("no drafts · no draft in 26 rounds: drafter_unavailable · no draft in 1 round: late")
