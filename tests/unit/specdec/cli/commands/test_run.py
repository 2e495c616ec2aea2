"""A stream of events becomes a result with its times."""

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from specdec.cli.commands.run import lines, report, show_report
from specdec.client.collect import collect
from specdec.client.events import Event, FinishedEvent, RoundEvent, StartedEvent, Token
from specdec.errors import InternalError
from specdec.rules.speculation import Origin
from specdec.sampling.params import FinishReason
from specdec.wire.generation import GammaReason
from specdec.wire.report import ReportedDraft, ReportedToken, RoundReport

CARD = Path(__file__).parents[5] / "gateway" / "http" / "static" / "card.js"
STARTED = StartedEvent("g1", "demo", 7)
FINISHED = FinishedEvent(FinishReason.LENGTH, 3, 3, drafted=4, accepted=1, rounds=2, fallbacks={})
ROUNDS = (
    RoundEvent((Token(5, "a", Origin.ACCEPTED), Token(6, "b", Origin.RECOVERED)), ("x",)),
    RoundEvent((Token(7, "c", Origin.PLAIN),), ()),
)


def ticking() -> Iterator[float]:
    yield from (10.0, 10.5, 12.0)


def test_the_first_token_and_the_end_are_timed_from_the_request() -> None:
    clock = ticking()
    result = collect([STARTED, *ROUNDS, FINISHED], clock=lambda: next(clock))
    assert (result.first_token, result.seconds) == (0.5, 2.0)
    assert result.tokens_per_second == 1.5
    assert result.decode_rate == pytest.approx(1 / 1.5)  # the two tokens of the first round arrived together
    assert result.tokens_per_round == 1.5
    assert result.accepted_share == 0.25
    assert result.text == "abc"


def test_every_round_is_handed_on_as_it_comes() -> None:
    seen: list[RoundEvent] = []
    collect([STARTED, *ROUNDS, FINISHED], seen.append)
    assert tuple(seen) == ROUNDS


@pytest.mark.parametrize("events", [[], [STARTED], [STARTED, *ROUNDS], [FINISHED]])
def test_a_stream_that_just_stops_is_an_error(events: list[Event]) -> None:
    with pytest.raises(InternalError):
        collect(events)


def test_the_report_holds_tokens_origins_and_counts() -> None:
    found = report(collect([STARTED, *ROUNDS, FINISHED]))
    assert [token["origin"] for token in found["tokens"]] == ["accepted", "recovered", "plain"]
    assert found["usage"] == {"prompt_tokens": 3, "completion_tokens": 3}
    assert (found["seed"], found["model"], found["finish_reason"]) == (7, "demo", "length")
    assert found["speculation"]["accepted_share"] == 0.25


REPORT = RoundReport(
    base_len=12,
    tokens=(ReportedToken(5, "a", Origin.ACCEPTED), ReportedToken(6, "b", Origin.RECOVERED)),
    drafted=(
        ReportedDraft(5, "a", True, "model", 0.5, 0.25, 0.125, 1.0),
        ReportedDraft(9, "\x1b", False, "grammar", 0.0),
    ),
    accepted=1,
    drafter="model",
    fallback="",
    gamma=2,
    gamma_reason="goodput",
    alpha=0.75,
    draft_seconds=0.002,
    network_seconds=0.0005,
    pass_seconds=0.01,
)


def test_a_round_is_explained_with_its_numbers_its_reason_and_its_times() -> None:
    console = Console(record=True, width=120, file=io.StringIO())
    show_report(console, REPORT)
    text = console.export_text()
    assert "round after 12 tokens: 1 of 2 drafts of model accepted" in text
    assert "γ 2: expected to give the most tokens per second · α 0.75" in text
    assert "draft 2.0 ms · network 0.5 ms · queue 0.0 ms · pass 10.0 ms" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["'a'", "0.5000", "0.2500", "1.0000", "0.1250", "accepted", "model"] in rows
    assert ["'\\\\x1b'", "0.0000", "–", "–", "–", "rejected", "grammar"] in rows


def test_a_round_drafted_by_entropy_is_explained_with_each_step() -> None:
    console = Console(record=True, width=120, file=io.StringIO())
    first, second = REPORT.drafted
    egag = replace(REPORT, drafted=(replace(first, h_norm=0.25, gamma=6), second), gamma_reason="egag")
    show_report(console, egag)
    text = console.export_text()
    assert "by the entropy of its distributions (EGAG)" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["token", "p", "q", "threshold", "u", "H_norm", "γ", "verdict", "source"] in rows
    assert ["'a'", "0.5000", "0.2500", "1.0000", "0.1250", "0.2500", "6", "accepted", "model"] in rows
    assert ["'\\\\x1b'", "0.0000", "–", "–", "–", "–", "–", "rejected", "grammar"] in rows


def test_a_round_without_a_draft_says_why() -> None:
    console = Console(record=True, width=120, file=io.StringIO())
    show_report(console, replace(REPORT, drafted=(), accepted=0, drafter="", fallback="late"))
    assert "no draft: late" in console.export_text()


@pytest.mark.parametrize("reason", GammaReason)
def test_every_reason_for_a_draft_length_has_words_on_console_and_page(reason: GammaReason) -> None:
    assert f"γ 3: {reason.value} ·" not in "".join(lines(replace(REPORT, gamma=3, gamma_reason=reason.value)))
    assert f"\n  {reason.value}: " in CARD.read_text(encoding="utf-8")


def test_the_report_in_json_has_the_rounds_that_were_explained() -> None:
    explained = replace(ROUNDS[0], report=REPORT)
    found = report(collect([STARTED, explained, FINISHED]))
    assert found["rounds"][0]["drafted"][0]["q"] == 0.25
    assert "rounds" not in report(collect([STARTED, *ROUNDS, FINISHED]))
