"""The one use case, with everything around it scripted."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import pytest

from gateway.config import AdmissionSettings, FailoverSettings
from gateway.request import ChatPrompt, GenerationRequest, TextPrompt, TokenPrompt
from gateway.tools.conversation import Message
from gateway.turns.events import Event, Finished, OutputRound, Started
from gateway.turns.generation import Generator
from specdec.errors import (
    ContextLengthExceeded,
    DeadlineExceeded,
    Draining,
    FieldInvalid,
    GammaTooLarge,
    ModelNotFound,
    NoVerifier,
    QueueFull,
    SessionStoreDown,
    TokenOutOfRange,
)
from specdec.rules.params import FinishReason, Mode, Origin, SamplingParams
from tests.gateway_fakes import (
    CONTEXT,
    EOS,
    ByteTokenizer,
    Script,
    ScriptedVerifier,
    drained,
    output,
    until,
)
from tests.unit.gateway.turns.in_memory import services

LOST = NoVerifier("verifier was lost")


class Stage:
    """A generator and what it works with."""

    def __init__(self, *verifiers: ScriptedVerifier, **settings: Any) -> None:
        self.verifiers = verifiers or (ScriptedVerifier(),)
        self.services = services(*self.verifiers, **settings)
        self.store, self.metrics = self.services.sessions, self.services.metrics
        self.pool, self.drain = self.services.models.first.pool, self.services.drain
        self.generator = Generator(self.services)

    async def stream(self, timeout: float | None = None, **request: Any) -> AsyncGenerator[Event]:
        await self.pool.probe()
        async with aclosing(self.generator.stream(ask(**request), timeout)) as events:
            async for event in events:
                yield event

    @property
    def committed_text(self) -> str:
        """The text of the only turn's committed output."""
        return ByteTokenizer().decode(self.store.only.tokens[self.store.only.base :])

    async def run(self, **request: Any) -> list[Event]:
        return [event async for event in self.stream(**request)]


def ask(**changes: Any) -> GenerationRequest:
    values: dict[str, Any] = {"prompt": TextPrompt("Say it"), "sampling": SamplingParams(seed=7)}
    return GenerationRequest(**(values | changes))


def text_of(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, OutputRound))


def ids_of(events: Sequence[Event]) -> list[int]:
    return [token.id for event in events if isinstance(event, OutputRound) for token in event.tokens]


def end_of(events: Sequence[Event]) -> Finished:
    last = events[-1]
    assert isinstance(last, Finished)
    return last


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


async def test_users_share_no_computed_prefix_with_each_other_whatever_salt_they_send() -> None:
    verifier = ScriptedVerifier()
    stage = Stage(verifier)
    for user, salt in (("", ""), ("ann", ""), ("bob", ""), ("", "ann"), ("ann", "s"), ("bob", "s"), ("user:ann", "")):
        await stage.run(user=user, cache_salt=salt)
    salts = [call.cache_salt for call in verifier.calls]
    assert len(set(salts)) == len(salts)
    await stage.run()
    await stage.run(user="ann", cache_salt="s")
    assert [call.cache_salt for call in verifier.calls[-2:]] == [salts[0], salts[4]] == ["", salts[4]]


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


async def test_a_lost_verifier_is_replaced_and_nothing_is_lost_or_said_twice() -> None:
    first, second = ScriptedVerifier("a:1"), ScriptedVerifier("b:1")
    first.failures = second.failures = [(2, LOST)]
    stage = Stage(first, second)
    events = await stage.run()
    assert text_of(events) == "Hello, world."
    assert ids_of(events) == output(Script())
    calls = sorted([*first.calls, *second.calls], key=lambda call: call.epoch)
    assert [call.epoch for call in calls] == [1, 2]
    assert {len(first.calls), len(second.calls)} == {1}
    assert list(calls[1].tokens) == [*b"Say it", *output(Script())[:8]]
    assert calls[0].session_id == calls[1].session_id
    assert calls[1].prompt_len == 6
    assert stage.metrics.failovers._value.get() == 1


async def test_a_store_that_is_away_while_a_verifier_is_lost_is_waited_for() -> None:
    verifier = ScriptedVerifier()
    verifier.failures = [(1, LOST)]
    stage = Stage(verifier, store_patience=30.0)
    task = asyncio.create_task(stage.run())
    await until(lambda: stage.store.sessions and len(stage.store.only.tokens) > 6)
    stage.store.down = True
    await stage.pool.probe()
    await until(lambda: stage.store.refused)
    stage.store.down = False
    assert ids_of(await task) == output(Script())
    assert stage.store.only.tokens[6:] == output(Script())


async def test_a_verifier_that_ends_without_finishing_is_lost() -> None:
    class Cut(ScriptedVerifier):
        async def generate(self, call: Any, timeout: float) -> AsyncGenerator[Any]:
            async for verified in super().generate(call, timeout):
                yield verified
                if call.epoch == 1:
                    return

    stage = Stage(Cut("a:1"), Cut("b:1"))
    assert text_of(await stage.run()) == "Hello, world."


async def test_the_only_verifier_may_come_back() -> None:
    verifier = ScriptedVerifier()
    verifier.failures = [(1, LOST)]
    stage = Stage(verifier)

    async def come_back() -> None:
        await until(lambda: stage.pool.states["a:1"] == "unreachable")
        await stage.pool.probe()

    events, _ = await asyncio.gather(stage.run(), come_back())
    assert ids_of(events) == output(Script())


async def test_giving_up_on_verifiers_is_bounded_by_attempts() -> None:
    verifiers = [ScriptedVerifier(f"{name}:1") for name in "abcd"]
    for verifier in verifiers:
        verifier.failures = [(0, LOST)]
    stage = Stage(*verifiers, failover=FailoverSettings(attempts=2))
    with pytest.raises(NoVerifier):
        await stage.run()
    assert sum(len(verifier.calls) for verifier in verifiers) == 3


async def test_giving_up_on_verifiers_is_bounded_by_time() -> None:
    verifier = ScriptedVerifier()
    verifier.failures = [(1, LOST)]
    stage = Stage(verifier, failover=FailoverSettings(seconds=0.01))
    with pytest.raises(NoVerifier):
        await stage.run()
    assert stage.store.only.owner == ""


async def test_a_generation_never_moves_to_another_model() -> None:
    first, other = ScriptedVerifier("a:1"), ScriptedVerifier("b:1", Script(text="Something else."))
    stage = Stage(first, other, failover=FailoverSettings(seconds=0.01))
    other.facts = ScriptedVerifier().facts.__class__(
        **{name: getattr(other.facts, name) for name in other.facts.__slots__} | {"system_fingerprint": "fp_other"}
    )
    first.failures = other.failures = [(1, LOST)]
    with pytest.raises(NoVerifier):
        await stage.run()
    assert len(first.calls) + len(other.calls) == 1


async def test_a_full_verifier_is_passed_over_and_all_full_is_said() -> None:
    full = QueueFull("no room")
    first, second = ScriptedVerifier("a:1"), ScriptedVerifier("b:1")
    first.failures = second.failures = [(0, full)]
    assert text_of(await Stage(first, second).run()) == "Hello, world."
    first.failures, second.failures = [(0, full)], [(0, full)]
    stage = Stage(first, second)
    with pytest.raises(QueueFull):
        await stage.run()
    assert stage.pool.states == {"a:1": "ready", "b:1": "ready"}


async def test_a_stop_string_across_rounds_cuts_text_tokens_and_counts() -> None:
    verifier = ScriptedVerifier()
    stage = Stage(verifier)
    events = await stage.run(stop=("lo, w",))
    end = end_of(events)
    assert text_of(events) == "Hel"
    assert (end.reason, end.matched_stop, end.completion_tokens) == (FinishReason.STOP, "lo, w", len("Hello, w"))
    assert stage.store.only.tokens[6:] == list(b"Hello, w")
    assert stage.store.only.finish == "stop"
    assert verifier.cancelled == 1


async def test_drafts_behind_a_stop_string_are_not_counted_as_accepted() -> None:
    stage = Stage(ScriptedVerifier(script=Script(gamma=7)))
    end = end_of(await stage.run(stop=("el",)))
    assert end.completion_tokens == 3
    assert end.summary.num_draft_tokens == 7
    assert end.summary.num_accepted_draft_tokens == 3


async def test_text_that_may_become_a_stop_string_is_held_back_though_its_tokens_are_committed() -> None:
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
        ({"max_tokens": CONTEXT}, ContextLengthExceeded, "max_tokens"),
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


async def test_a_caller_who_leaves_cancels_the_verifier_and_gives_the_session_back() -> None:
    verifier = ScriptedVerifier()
    stage = Stage(verifier)
    await stage.pool.probe()
    events = stage.generator.stream(ask())
    async with aclosing(events):
        await anext(events)
        await anext(events)
    assert verifier.cancelled == 1
    assert stage.store.journal == ["open", "acquire", "commit", "release"]
    assert stage.store.only.owner == ""
    assert stage.store.only.finish == ""


async def test_a_cancelled_task_cancels_the_verifier_and_gives_the_session_back() -> None:
    verifier = ScriptedVerifier(script=Script(pause=3600))
    stage = Stage(verifier)
    task = asyncio.create_task(stage.run())
    await until(lambda: verifier.calls)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert verifier.cancelled == 1
    assert stage.store.journal[-1] == "release"


async def test_a_generation_keeps_its_place_until_it_ends_even_without_a_reader() -> None:
    verifier = ScriptedVerifier(script=Script(pause=3600))
    stage = Stage(verifier, admission=AdmissionSettings(running=16, seconds=0.02), grace=3600)
    streams = [stage.stream(prompt=TextPrompt(str(number))) for number in range(14)]
    for events in streams:
        await anext(events)
        await events.aclose()
    with pytest.raises(QueueFull):
        await stage.run()
    assert len(verifier.calls) == 14
    await stage.services.broadcasts.close()
    verifier.script = Script()
    assert text_of(await stage.run()) == "Hello, world."


async def test_a_prompt_that_cannot_fit_does_not_wait_to_be_let_in() -> None:
    stage = Stage(admission=AdmissionSettings(running=16))
    held = [stage.services.generations.take("t") for _ in range(16)]
    with pytest.raises(ContextLengthExceeded):
        await stage.run(prompt=TextPrompt("x" * CONTEXT * 2))
    for place in held:
        place.leave()


async def test_a_slow_round_keeps_the_lease() -> None:
    verifier = ScriptedVerifier(script=Script(pause=0.05))
    stage = Stage(verifier, lease=0.03)
    await stage.run()
    assert "renew" in stage.store.journal


async def test_a_session_that_is_cancelled_elsewhere_ends_with_what_is_committed() -> None:
    stage = Stage()
    events = []
    async for event in stage.stream():
        events.append(event)
        if isinstance(event, Started):
            stage.store.only.cancelled = True
    assert text_of(events) == "Hell"
    assert end_of(events).completion_tokens == 4
    assert stage.store.only.finish == "stop"


async def test_a_cancel_reaches_a_turn_whose_round_does_not_come() -> None:
    verifier = ScriptedVerifier(script=Script(pause=3600))
    stage = Stage(verifier, lease=0.03)
    events = []
    async for event in stage.stream():
        events.append(event)
        stage.store.only.cancelled = True
    assert end_of(events).completion_tokens == 0
    assert (stage.store.only.finish, verifier.cancelled) == ("stop", 1)


async def test_a_cancel_does_not_wait_for_the_lease() -> None:
    verifier = ScriptedVerifier(script=Script(pause=3600))
    stage = Stage(verifier, lease=3600.0)
    events = []
    async for event in stage.stream():
        events.append(event)
        (session_id,) = stage.store.sessions
        await stage.store.cancel(session_id, stage.store.only.tenant, 1)
    assert end_of(events).completion_tokens == 0
    assert stage.store.only.finish == "stop"


async def test_a_round_out_of_place_is_never_committed() -> None:
    class Confused(ScriptedVerifier):
        async def generate(self, call: Any, timeout: float) -> AsyncGenerator[Any]:
            async for verified in super().generate(call, timeout):
                yield verified
                yield verified

    stage = Stage(Confused("a:1"), ScriptedVerifier("b:1"))
    assert text_of(await stage.run()) == "Hello, world."
    assert stage.store.only.tokens[6:] == output(Script())


async def test_a_deadline_that_has_passed_ends_the_generation() -> None:
    with pytest.raises(DeadlineExceeded):
        await Stage().run(timeout=0.0)


async def test_a_closed_gate_lets_nothing_in_and_an_expired_one_ends_what_runs() -> None:
    stage = Stage()
    events = stage.stream()
    await anext(events)
    stage.drain.close()
    assert await stage.drain.wait(0.0) is False
    await anext(events)
    with pytest.raises(Draining):
        await anext(events)
    with pytest.raises(Draining):
        await stage.run()
    assert await stage.drain.wait(1.0) is True


async def test_chats_go_through_the_tokenizer() -> None:
    stage = Stage()
    started = (await stage.run(prompt=ChatPrompt((Message("user", "hi"),))))[0]
    assert isinstance(started, Started)
    assert bytes(started.header.prompt) == b"user: hi\n"


async def test_output_tokens_are_counted() -> None:
    stage = Stage()
    await stage.run()
    assert stage.metrics.tokens.labels("output")._value.get() == len(output(Script()))
    assert stage.metrics.running._value.get() == 0
