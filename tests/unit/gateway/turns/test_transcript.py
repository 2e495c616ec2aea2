"""A transcript cuts each round where the output ends, and shows text once it is final."""

import pytest

from gateway.turns.transcript import Transcript
from specdec.errors import InternalError
from specdec.rules.params import FinishReason, Origin
from specdec.wire.generation import Round
from tests.gateway_fakes import ByteTokenizer
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


def test_a_round_is_kept_whole_and_shown_with_its_rejected_drafts() -> None:
    made = transcript()
    kept, shown = made.take(drafted(6, b"abc", 2))
    assert kept == drafted(6, b"abc", 2)
    assert (shown.text, [token.text for token in shown.rejected], shown.drafted, shown.accepted) == ("abc", ["A"], 3, 2)
    assert (made.tokens, made.committed, shown.committed) == ([*PROMPT, *b"abc"], 3, 3)


def test_a_round_is_cut_behind_a_stop_string_with_its_counts() -> None:
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


def test_rounds_out_of_place_and_ends_too_early_are_bugs() -> None:
    made = transcript()
    with pytest.raises(InternalError):
        made.take(drafted(7, b"a", 0))
    with pytest.raises(InternalError):
        made.finished()
    made.take(drafted(6, b"a", 0, FinishReason.STOP))
    with pytest.raises(InternalError):
        made.take(drafted(7, b"b", 0))
