"""A generation with scripted dependencies: its calls, commits and events."""

import threading
from dataclasses import replace
from typing import Any

import pytest

from gateway.callers.caller import called_from
from gateway.request import ChatPrompt, TextPrompt, TokenPrompt
from gateway.tools.values import Message
from gateway.turns import generation
from gateway.turns.events import Event, Finished, OutputRound, Started
from gateway.turns.transcript import history_of
from specdec.errors import (
    ContextLengthExceeded,
    FieldInvalid,
    GammaTooLarge,
    ModelNotFound,
    SessionStoreDown,
    TokenOutOfRange,
)
from specdec.rules.speculation import Mode, Origin
from specdec.sampling.params import FinishReason, SamplingParams
from tests.support.gateway_fakes import (
    CONTEXT,
    EOS,
    ByteTokenizer,
    Script,
    ScriptedVerifier,
    drained,
    facts,
    output,
    until,
)
from tests.unit.gateway.turns.generation_stage import Stage, ask, end_of, ids_of, text_of


async def test_a_generation_is_started_then_rounds_then_finished() -> None:
    stage = Stage()
    first, *middle, last = await stage.run()
    assert isinstance(first, Started)
    (session_id,) = stage.store.sessions
    assert (first.turn.name, first.session) == (f"{session_id}-1", "")
    assert (first.header.prompt, first.header.call.sampling.seed) == (tuple(b"Say it"), 7)
    assert (first.header.model, first.header.system_fingerprint) == ("bytes", "fp_test")
    assert all(isinstance(event, OutputRound) for event in middle)
    assert isinstance(last, Finished)
    assert (last.reason, last.prompt_tokens, last.completion_tokens) == (FinishReason.STOP, 6, 14)
    assert text_of(middle) == "Hello, world."
    assert ids_of(middle) == output(Script())


async def test_users_share_no_computed_prefix_under_any_salt() -> None:
    verifier = ScriptedVerifier()
    stage = Stage(verifier)
    for user, salt in (("", ""), ("ann", ""), ("bob", ""), ("", "ann"), ("ann", "s"), ("bob", "s"), ("user:ann", "")):
        await stage.run(user=user, cache_salt=salt)
    salts = [call.cache_salt for call in verifier.calls]
    assert len(set(salts)) == len(salts)
    await stage.run()
    await stage.run(user="ann", cache_salt="s")
    assert [call.cache_salt for call in verifier.calls[-2:]] == [salts[0], salts[4]] == ["", salts[4]]


async def test_a_verifier_tells_callers_apart_without_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation, "_QUICK", -1)  # on a thread, which does not know the address
    verifier = ScriptedVerifier()
    stage = Stage(verifier)
    for address, user in (("192.0.2.7", "ann"), ("192.0.2.7", "ann"), ("192.0.2.7", "bob"), ("192.0.2.8", "ann")):
        called_from(address)
        await stage.run(user=user)
    ann, again, bob, away = ((call.client, call.user) for call in verifier.calls)
    assert ann == again
    assert (bob[0] == ann[0], bob[1] == ann[1]) == (True, False)
    assert (away[0] == ann[0], away[1] == ann[1]) == (False, True)
    assert not {"ann", "192.0.2.7"} & {*ann}


async def test_every_round_is_committed_before_it_is_shown() -> None:
    stage = Stage()
    async for event in stage.stream():
        shown = event.committed if isinstance(event, OutputRound) else 0
        if isinstance(event, OutputRound):
            assert len(stage.store.only.tokens) - stage.store.only.base >= shown
    assert stage.store.only.finish == "stop"


async def test_what_the_store_refused_is_not_shown() -> None:
    stage = Stage()
    shown: list[Event] = []

    def see(event: Event) -> None:
        shown.append(event)
        stage.store.down = len(shown) == 2

    with pytest.raises(SessionStoreDown):
        await drained(stage.stream(), see)
    assert ids_of(shown) == output(Script())[:4]
    assert stage.store.only.tokens == [*b"Say it", *output(Script())[:4]]


async def test_a_stop_string_across_rounds_cuts_text_tokens_and_counts() -> None:
    verifier = ScriptedVerifier(script=Script(pause=0.05))
    stage = Stage(verifier)
    events = await stage.run(stop=("lo, w",))
    end = end_of(events)
    assert text_of(events) == "Hel"
    assert (end.reason, end.matched_stop, end.completion_tokens) == (FinishReason.STOP, "lo, w", len("Hello, w"))
    assert stage.store.only.tokens[6:] == list(b"Hello, w")
    assert stage.store.only.finish == "stop"
    await until(lambda: verifier.cancelled == 1)


async def test_drafts_after_a_stop_string_are_not_counted_as_accepted() -> None:
    stage = Stage(ScriptedVerifier(script=Script(gamma=7)))
    end = end_of(await stage.run(stop=("el",)))
    assert end.completion_tokens == 3
    assert end.summary.num_draft_tokens == 7
    assert end.summary.num_accepted_draft_tokens == 3


async def test_text_that_may_become_a_stop_string_is_held_back() -> None:
    stage = Stage(ScriptedVerifier(script=Script(text="abcdef", gamma=0)))
    shown, held = "", set()
    async for event in stage.stream(stop=("cdX",)):
        if isinstance(event, OutputRound):
            shown += event.text
            committed = ByteTokenizer().decode(stage.store.only.tokens[stage.store.only.base :])
            assert committed.startswith(shown)
            assert not shown.endswith(("c", "cd"))
            held.add(committed[len(shown) :])
    assert shown == "abcdef"
    assert {"c", "cd"} <= held


async def test_rounds_say_where_tokens_came_from_and_what_was_rejected() -> None:
    stage = Stage(ScriptedVerifier(script=Script(text="abcd", gamma=3)))
    first, second = [event for event in await stage.run() if isinstance(event, OutputRound)]
    assert [(token.text, token.origin) for token in first.tokens] == [
        ("a", Origin.ACCEPTED),
        ("b", Origin.ACCEPTED),
        ("c", Origin.ACCEPTED),
        ("d", Origin.BONUS),
    ]
    assert [token.text for token in second.rejected] == ["A", "A"]
    assert (second.drafted, second.accepted) == (3, 1)


async def test_plain_rounds_and_their_reasons_are_reported() -> None:
    stage = Stage(ScriptedVerifier(script=Script(text="abc", fallback="no_drafter")))
    summary = end_of(await stage.run()).summary
    assert dict(summary.fallbacks) == {"no_drafter": 4}
    assert (summary.num_spec_steps, summary.num_plain_steps) == (0, 4)


async def test_the_verifier_is_asked_for_exactly_what_the_caller_wants() -> None:
    stage = Stage()
    await stage.run(max_tokens=5, stop_token_ids=(9,), mode=Mode.COUPLED, gamma=2)
    (call,) = stage.verifiers[0].calls
    assert (call.max_tokens, call.stop_token_ids, call.speculation.mode, call.speculation.gamma) == (
        5,
        (EOS, 9),
        Mode.COUPLED,
        2,
    )
    assert call.sampling.end_token_ids == (EOS, 9)
    assert call.sampling.seed == 7


async def test_ignoring_the_end_leaves_the_models_end_ids_out() -> None:
    stage = Stage()
    await stage.run(max_tokens=5, ignore_eos=True)
    assert stage.verifiers[0].calls[0].stop_token_ids == ()


async def test_without_max_tokens_the_room_left_is_used() -> None:
    stage = Stage()
    await stage.run()
    await stage.run(cap_tokens=16)
    assert [call.max_tokens for call in stage.verifiers[0].calls] == [CONTEXT - 6, 16]


@pytest.mark.parametrize(
    ("request_fields", "error", "param"),
    [
        ({"model": "other"}, ModelNotFound, "model"),
        ({"prompt": TextPrompt("x" * CONTEXT)}, ContextLengthExceeded, "prompt"),
        ({"prompt": TokenPrompt((1, EOS + 1))}, TokenOutOfRange, "prompt"),
        ({"stop_token_ids": (EOS + 1,)}, TokenOutOfRange, "stop_token_ids"),
        ({"sampling": SamplingParams(logit_bias={EOS + 1: 1.0})}, TokenOutOfRange, "logit_bias"),
        ({"gamma": 9}, GammaTooLarge, "speculation.gamma"),
        ({"drafter": "nobody"}, FieldInvalid, "speculation.drafter"),
        ({"prediction": "x" * 10_000}, ContextLengthExceeded, "prediction"),
    ],
)
async def test_what_the_model_cannot_do_is_refused_before_anything_is_stored(
    request_fields: dict[str, Any], error: type[Exception], param: str
) -> None:
    stage = Stage()
    with pytest.raises(error) as refused:
        await stage.run(**request_fields)
    assert refused.value.param == param  # type: ignore[attr-defined]
    assert stage.store.journal == []
    assert text_of(await stage.run()) == "Hello, world."


async def test_chats_go_through_the_tokenizer() -> None:
    stage = Stage()
    started = (await stage.run(prompt=ChatPrompt((Message("user", "hi"),))))[0]
    assert isinstance(started, Started)
    assert bytes(started.header.prompt) == b"user: hi\n"


async def test_output_tokens_are_counted() -> None:
    stage = Stage()
    await stage.run()
    assert stage.metrics.output_tokens.value == len(output(Script()))
    assert stage.metrics.running._value.get() == 0


@pytest.mark.parametrize(("length", "on_loop"), [(8, True), (3000, False)])
async def test_a_long_last_turn_is_read_beside_the_event_loop(
    length: int, on_loop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers = []

    def noted(*given: Any) -> tuple[int, ...]:
        readers.append(threading.get_ident())
        return history_of(*given)

    monkeypatch.setattr(generation, "history_of", noted)
    script = Script(tokens=tuple(b"a" * length))
    stage = Stage(ScriptedVerifier(script=script, info=facts(context_length=8192)))
    asked = ask(sampling=SamplingParams(seed=7), max_tokens=length, stop=("zz",))
    await stage.pool.probe()
    _ = [event async for event in stage.generator.stream(asked)]
    (session_id,) = stage.store.sessions
    more = replace(asked, session=session_id, max_tokens=8, prompt=TextPrompt("More"))
    events = [event async for event in stage.generator.stream(more)]
    assert readers
    assert (readers[0] == threading.get_ident()) is on_loop
    assert isinstance(events[0], Started)
    assert events[0].prompt(0) == (*b"Say it", *b"a" * length, *b"More")
