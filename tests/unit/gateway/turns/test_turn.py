"""A stored turn is restored exactly, and its identifiers are unambiguous."""

import math
import re
from dataclasses import replace

import pytest

from gateway.callers.caller import MAX_NAME, tenant_of
from gateway.http.replies.answers import cursor, idempotency_key, received
from gateway.request import MAX_CHOICES, GenerationRequest, TextPrompt
from gateway.store.values import StoredRound
from gateway.turns.events import OutputRound
from gateway.turns.transcript import Transcript
from gateway.turns.turn import (
    Header,
    Turn,
    header_from_bytes,
    header_to_bytes,
    new_session_id,
    note_of,
    round_from,
    session_id_for,
)
from specdec.errors import FieldInvalid, GenerationNotFound, InternalError
from specdec.rules.speculation import Mode, Origin, Speculation, TreeOptions
from specdec.sampling.logprobs import TokenLogprobs
from specdec.sampling.params import FinishReason, SamplingParams
from specdec.wire.generation import GenerationCall, Round, Timing
from tests.support.gateway_fakes import ByteTokenizer

CALL = GenerationCall(
    tokens=(1, 2, 3),
    prompt_len=3,
    sampling=SamplingParams(temperature=0.1, seed=2**62 + 1, logit_bias={7: -1.5}, end_token_ids=(256,)),
    max_tokens=50,
    stop_token_ids=(256, 9),
    speculation=Speculation(Mode.COUPLED, 3),
)
HEADER = Header(CALL, ("lo, w", "é"), "demo", "fp", 17, answer_format="openai chat", in_session=True)
TURN = Turn("0" * 32, "t", 2)


def test_a_header_comes_back_as_it_was() -> None:
    assert header_from_bytes(header_to_bytes(HEADER), HEADER.prompt) == HEADER
    assert b"[1,2,3]" not in header_to_bytes(HEADER)
    trees = replace(CALL, speculation=Speculation(tree=TreeOptions(8, 3, 4, drafters=("model", "ngram"))))
    header = replace(HEADER, call=trees)
    assert header_from_bytes(header_to_bytes(header), header.prompt) == header


def verified(base: int, text: str, drafted: int, accepted: int) -> Round:
    tokens = tuple(text.encode())
    origins = (Origin.ACCEPTED,) * accepted + (Origin.RECOVERED,) * (len(tokens) - accepted)
    return Round(
        base_len=base,
        tokens=tokens,
        origins=origins,
        draft=(65,) * drafted,
        accepted=accepted,
        timing=Timing(verify=0.5),
    )


def transcribed(rounds: list[Round]) -> tuple[Transcript, list[Round], list[OutputRound]]:
    transcript = Transcript(TURN, HEADER, ByteTokenizer().decode)
    taken = [transcript.take(each) for each in rounds]
    return transcript, [kept for kept, _ in taken], [shown for _, shown in taken]


def test_rounds_read_back_make_the_same_events_as_when_they_ran() -> None:
    live, kept, shown = transcribed([verified(3, "Hel", 4, 2), verified(6, "lo, world", 9, 8)])
    assert "".join(round_.text for round_ in shown) == "Hel"
    stored = [StoredRound(taken.tokens, taken.finish.value if taken.finish else "", note_of(taken)) for taken in kept]
    bases = [3, 6]
    again, _, told = transcribed([round_from(round_, base) for round_, base in zip(stored, bases, strict=True)])
    assert told == shown
    assert again.finished() == live.finished()
    assert again.finished().matched_stop == "lo, w"


def test_log_probabilities_come_back_with_their_tokens_even_infinite_ones() -> None:
    scores = (TokenLogprobs(-0.5, ((7, -0.5), (8, -math.inf))),)
    scored = verified(3, "a", 0, 0)._replace(logprobs=scores)
    assert round_from(StoredRound(scored.tokens, "", note_of(scored)), 3).logprobs == scores


def test_an_end_without_tokens_and_without_a_note_is_told() -> None:
    transcript, _, _ = transcribed([verified(3, "lo", 0, 0)])
    _, shown = transcript.take(round_from(StoredRound((), "stop", b""), 5))
    assert shown.text == "lo"
    assert transcript.finished().reason is FinishReason.STOP
    assert transcript.finished().summary.num_plain_steps == 2


def test_a_round_out_of_place_is_a_bug() -> None:
    with pytest.raises(InternalError):
        transcribed([verified(4, "x", 0, 0)])


def test_a_turn_is_found_by_its_name_and_nothing_else() -> None:
    assert Turn.named(TURN.name, "t") == TURN
    for wrong in ("", "x", "0" * 32, "0" * 32 + "-0", "0" * 31 + "{-1", "0" * 32 + "-1-1", "A" * 32 + "-1"):
        with pytest.raises(GenerationNotFound):
            Turn.named(wrong, "t")


def test_names_are_random_or_a_function_of_secret_tenant_and_key() -> None:
    assert new_session_id() != new_session_id()
    assert re.fullmatch("[0-9a-f]{32}", new_session_id())
    assert session_id_for(b"s", "a", "k") == session_id_for(b"s", "a", "k")
    asked = [(b"s", "a", "k"), (b"t", "a", "k"), (b"s", "b", "k"), (b"s", "a", "l")]
    assert len({session_id_for(*each) for each in asked}) == 4
    assert session_id_for(b"s", "a", "1:bk") != session_id_for(b"s", "a:1", "bk")


def test_a_user_called_like_the_tenant_of_all_others_is_still_alone() -> None:
    assert tenant_of("default") != tenant_of("")


def ask(**changes: object) -> GenerationRequest:
    values: dict[str, object] = {"prompt": TextPrompt("a"), "sampling": SamplingParams(seed=1)}
    return GenerationRequest(**(values | changes))  # type: ignore[arg-type]


def test_a_digest_covers_the_request_and_not_a_seed_drawn_for_the_caller() -> None:
    same = [
        ask(),
        ask(sampling=SamplingParams(seed=2)),
        ask(idempotency_key="k"),
        ask(answer_format="x", resumable=False),
    ]
    assert len({request.digest for request in same}) == 1
    other = [ask(prompt=TextPrompt("b")), ask(max_tokens=3), ask(user="u"), ask(seeded=True)]
    assert len({request.digest for request in (ask(), *other)}) == 5
    seeded = ask(seeded=True)
    assert seeded.digest != replace(seeded, sampling=SamplingParams(seed=2)).digest


def test_a_cursor_is_read_as_it_was_written_and_for_its_own_generation() -> None:
    for positions in ((12,), (3, 0, 999_999_999), (1,) * MAX_CHOICES):
        assert received({"last-event-id": cursor(TURN.name, positions)}, TURN.name) == positions
    assert received({}) == ()
    many = ".1" * (MAX_CHOICES + 1)
    for wrong in ("12", "x.12", f"{TURN.name}.-1", f"{TURN.name}.", f"{TURN.name}.1.", TURN.name + many):
        with pytest.raises(FieldInvalid):
            received({"last-event-id": wrong}, TURN.name)


def test_names_have_a_limit() -> None:
    assert idempotency_key({"idempotency-key": "k" * MAX_NAME}) == "k" * MAX_NAME
    long = "k" * (MAX_NAME + 1)
    with pytest.raises(FieldInvalid):
        idempotency_key({"idempotency-key": long})
    with pytest.raises(FieldInvalid):
        tenant_of(long)
    for changes in ({"user": long}, {"idempotency_key": long}):
        with pytest.raises(FieldInvalid):
            ask(**changes)
