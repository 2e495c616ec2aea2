"""A transcript cuts each round where the output ends, and shows text once it is final."""

from dataclasses import replace

import pytest

from gateway.store.values import StoredRound
from gateway.turns.transcript import Transcript
from gateway.turns.turn import note_of, round_from
from gateway.verifiers.round_streams import joined
from specdec.errors import InternalError
from specdec.rules.judged import JudgedToken
from specdec.rules.speculation import Origin
from specdec.sampling.params import FinishReason
from specdec.wire.generation import Round, RoundDetail, Speedup, Timing
from tests.support.gateway_fakes import EOS, ByteTokenizer
from tests.unit.gateway.turns.in_memory import PROMPT, TURN, header


def transcript(*stop: str) -> Transcript:
    return Transcript(TURN, header(stop), ByteTokenizer().decode)


def drafted(base: int, text: bytes, accepted: int, finish: FinishReason | None = None) -> Round:
    origins = (Origin.ACCEPTED,) * accepted + (Origin.RECOVERED,) * (len(text) - accepted)
    return Round(
        base_len=base,
        tokens=tuple(text),
        origins=origins,
        draft=(*text[:accepted], 65),
        accepted=accepted,
        finish=finish,
    )


def plain(base: int, letter: str) -> Round:
    return Round(base_len=base, tokens=tuple(letter.encode()), origins=(Origin.PLAIN,))


def test_a_round_is_kept_whole_and_shown_with_its_rejected_drafts() -> None:
    made = transcript()
    kept, shown = made.take(drafted(6, b"abc", 2))
    assert kept == drafted(6, b"abc", 2)
    assert (shown.text, [token.text for token in shown.rejected], shown.drafted, shown.accepted) == ("abc", ["A"], 3, 2)
    assert (made.tokens, made.committed, shown.committed) == ([*PROMPT, *b"abc"], 3, 3)


def test_a_round_is_cut_after_a_stop_string_with_its_counts() -> None:
    made = transcript("bc")
    kept, shown = made.take(drafted(6, b"abcdef", 5))
    assert (kept.tokens, len(kept.origins), kept.accepted, kept.finish) == (tuple(b"abc"), 3, 3, FinishReason.STOP)
    assert (shown.text, shown.accepted) == ("a", 3)
    assert (made.finished().matched_stop, made.finished().completion_tokens) == ("bc", 3)
    assert made.summary.num_accepted_draft_tokens == 3


def test_text_that_was_held_back_is_shown_with_the_end() -> None:
    made = transcript("bX")
    assert made.take(drafted(6, b"ab", 0))[1].text == "a"
    kept, shown = made.take(drafted(8, b"c", 0, FinishReason.LENGTH))
    assert (kept.finish, shown.text) == (FinishReason.LENGTH, "bc")
    assert made.finished().matched_stop == ""


def test_an_end_without_tokens_is_no_step_of_the_statistics() -> None:
    made = transcript()
    made.take(drafted(6, b"ab", 1))
    made.take(Round(base_len=8, finish=FinishReason.STOP))
    assert (made.summary.num_spec_steps, made.summary.num_plain_steps) == (1, 0)


@pytest.mark.parametrize(("stop", "late", "steps"), [((), 4, 6), (("de",), 4, 4), (("bc",), 3, 3)])
def test_joined_plain_rounds_leave_the_same_statistics_live_and_read_back(
    stop: tuple[str, ...], late: int, steps: int
) -> None:
    rounds = [plain(6 + index, letter)._replace(fallback="late") for index, letter in enumerate("abcd")]
    rounds += [drafted(10, b"e", 0), plain(11, "f"), plain(12, "g")._replace(finish=FinishReason.LENGTH)]
    together = [joined(rounds[:4]), rounds[4], joined(rounds[5:])]
    alone, live, read_back = transcript(*stop), transcript(*stop), transcript(*stop)
    for each in rounds:
        if alone.finish is None:
            alone.take(each)
    for each in together:
        if live.finish is None:
            kept, shown = live.take(each)
            stored = StoredRound(kept.tokens, kept.finish.value if kept.finish else "", note_of(kept))
            assert read_back.take(round_from(stored, kept.base_len))[1] == shown
    assert live.finished() == read_back.finished() == alone.finished()
    assert (live.summary.fallbacks, live.summary.num_plain_steps) == ({"late": late}, steps)


def test_rounds_out_of_place_and_ends_too_early_are_bugs() -> None:
    made = transcript()
    with pytest.raises(InternalError):
        made.take(drafted(7, b"a", 0))
    with pytest.raises(InternalError):
        made.finished()
    made.take(drafted(6, b"a", 0, FinishReason.STOP))
    with pytest.raises(InternalError):
        made.take(drafted(7, b"b", 0))


def test_a_round_comes_with_a_report_where_the_request_asks() -> None:
    asked = header()
    asked = replace(asked, call=replace(asked.call, speculation=replace(asked.call.speculation, detail=True)))
    done = drafted(6, b"abc", 2)._replace(
        drafter="model",
        timing=Timing(0.5, 0.25, 1.0),
        speedup=Speedup(1.5, 1.25),
        forced=1,
        detail=RoundDetail(4, "goodput", 0.75, 0.5, 0.125, (JudgedToken(0.5, 0.25, 0.125, 1.0),) * 3),
    )
    kept, shown = Transcript(TURN, asked, ByteTokenizer().decode).take(done)
    report = shown.report
    assert report is not None
    assert [(token.text, token.accepted, token.source, token.q) for token in report.drafted] == [
        ("a", True, "model", 0.25),
        ("b", True, "model", 0.25),
        ("A", False, "grammar", 0.25),
    ]
    assert [(token.text, token.origin) for token in report.tokens] == [
        ("a", Origin.ACCEPTED),
        ("b", Origin.ACCEPTED),
        ("c", Origin.RECOVERED),
    ]
    assert (report.base_len, report.gamma, report.gamma_reason, report.alpha) == (6, 4, "goodput", 0.75)
    assert (report.draft_seconds, report.network_seconds) == (0.375, 0.125)
    assert (report.queue_seconds, report.pass_seconds) == (0.25, 1.0)
    detail = replace(done.detail, network=1.0)
    present = Transcript(TURN, asked, ByteTokenizer().decode).take(done._replace(detail=detail))[1].report
    assert present is not None
    assert present.draft_seconds == 0.0, "the draft was there before the wait began"
    assert transcript().take(done)[1].report is None
    stored = StoredRound(kept.tokens, "", note_of(kept))
    again = round_from(stored, 6)
    assert (again.detail, again.timing, again.speedup) == (None, Timing(), Speedup())
    read_back = Transcript(TURN, asked, ByteTokenizer().decode).take(round_from(stored, 6))[1].report
    assert read_back is not None
    assert [(token.text, token.p) for token in read_back.drafted] == [("a", None), ("b", None), ("A", None)]


@pytest.mark.parametrize(
    ("shows_stop", "shows_special", "stop", "text"),
    [
        (False, False, (), "abc"),
        (False, True, (), "abc"),
        (True, True, (), "abc<end>"),
        (True, False, ("b",), "ab"),
        (False, True, ("<end>",), "abc"),
        (True, True, ("<end>",), "abc<end>"),
    ],
)
def test_special_tokens_and_stop_strings_are_shown_on_request(
    shows_stop: bool, shows_special: bool, stop: tuple[str, ...], text: str
) -> None:
    asked = replace(header(stop), shows_stop=shows_stop, shows_special=shows_special)
    transcript = Transcript(TURN, asked, ByteTokenizer().decode)
    tokens = (*b"abc", EOS)
    done = Round(base_len=len(PROMPT), tokens=tokens, origins=(Origin.PLAIN,) * 4, finish=FinishReason.STOP)
    assert transcript.take(done)[1].text == text
