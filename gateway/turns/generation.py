"""Caller's interface to generations: start, stream, resume and cancel."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

import structlog

from gateway.admission import AT_ONCE, Places, RequestPlaces
from gateway.callers.caller import key_tenant, place_share, pseudonyms
from gateway.request import GenerationRequest
from gateway.store.values import Opened, SessionView, TurnView
from gateway.tasks import Shared, retry
from gateway.text.prompt_encoder import PromptEncoder, request_memory
from gateway.tools.values import ToolCall
from gateway.turns.broadcast import Broadcast
from gateway.turns.call import calls_of, digest_of, make_call, turn_key, with_ends
from gateway.turns.charge import Charge, charged
from gateway.turns.events import Event, Started, skips_of, without_first
from gateway.turns.services import Services
from gateway.turns.transcript import history_of
from gateway.turns.turn import (
    Header,
    Turn,
    choice_session_id,
    header_from_bytes,
    header_to_bytes,
    new_session_id,
    session_id_for,
)
from gateway.turns.turn_stream import TurnStream
from specdec.errors import (
    CursorAhead,
    GenerationNotFound,
    NoVerifier,
    SessionDiverged,
    SessionExpired,
    SessionNotFound,
)

_Encoded = tuple[tuple[int, ...], tuple[tuple[int, ...], ...], tuple[int, ...]]
"""Token ids that a prompt adds, those of each bad word, and those of the prediction."""
_LAST = 32
"""Number of tokens at the end of a prompt that are searched for an opening thinking tag."""
_QUICK = 1024
"""Most tokens of work on the event loop, a few milliseconds; work on more runs on a thread."""
_Result = TypeVar("_Result")
_Begin = Callable[[Turn, Header | None, bool], Broadcast]
"""Starts or joins a turn's broadcast; takes the header of a turn just opened, and whether it is resumable."""

_log = structlog.get_logger()


class Generator:
    """Starts, resumes and cancels generations."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def stream(
        self,
        request: GenerationRequest,
        timeout: float | None = None,
        after: Sequence[int] = (),
        *,
        at_end: bool = False,
    ) -> AsyncGenerator[Event]:
        """Yield the events of a request's generations. A repeated idempotency key gets the first request's events.

        Args:
            timeout: longest time in seconds; None uses the server's limit.
            after: number of output tokens that the caller already has, by choice; empty if it has none.
            at_end: whether rounds are yielded, joined, only when the generation has ended; not so with several choices.

        Raises:
            RequestError: the model cannot serve the request; raised before Started.
            ServiceError: a failure could not be recovered; raised at any time.
        """
        services, deadline = self._services, self._deadline(timeout)
        model = services.models.named(request.model)
        skips = skips_of(after, request.number)
        services.drain.check_open()
        if request.model or not request.session:  # otherwise the session determines the model
            with suppress(NoVerifier):  # a verifier may become ready later
                model.prompts.check(request, model.pool.info.context_length)
        async with charged(services, request) as charge:
            places = min(request.number, AT_ONCE)
            begin = partial(self._broadcast, deadline, RequestPlaces(services.generations, request.tenant))
            with await services.generations.enter(request.tenant, places, request_memory(request)) as entrance:
                if (grammar := request.sampling.grammar) is not None:
                    grammar = await services.grammars.check(grammar, request.grammar_param, request.tenant)
                    request = replace(request, sampling=replace(request.sampling, grammar=grammar))
                # Of several choices, those that a failure leaves unread would cost their key nothing.
                at_end = at_end and request.number == 1
                first = await self._session_id(request)
                encoded: list[Shared[_Encoded]] = [Shared() for _ in request.prompts]
                generations = [
                    self._generation(
                        *(choice, choice_session_id(first, index), begin),
                        *(charge, encoded[index // request.n], partial(_events_of, skips[index], at_end)),
                    )
                    for index, choice in enumerate(request.choices())
                ]
                async with aclosing(joined(generations, entrance)) as events:
                    async for event in events:
                        yield await charge.counted(event)

    async def _session_id(self, request: GenerationRequest) -> str:
        """Return the session id of the request, or of its first choice."""
        if request.session or not request.idempotency_key:
            return request.session or new_session_id()
        return session_id_for(await self._services.sessions.secret(), request.tenant, request.idempotency_key)

    async def _generation(
        self,
        request: GenerationRequest,
        session_id: str,
        begin: _Begin,
        charge: Charge,
        encoded: Shared[_Encoded],
        events_of: Callable[[Broadcast], AsyncGenerator[Event]],
    ) -> AsyncGenerator[Event]:
        services = self._services
        with services.drain.generation():
            opened, header = await self._open(request, session_id, encoded)
            charge.repeated = opened.repeated
            turn = Turn(session_id, request.tenant, opened.turn)
            log = _log.bind(generation=turn.name, request=request.request_id)
            log.debug("generation_attached" if opened.repeated else "generation_began")
            broadcast = begin(turn, None if opened.repeated else header, request.resumable)
        async with aclosing(events_of(broadcast)) as events:
            async for event in events:
                yield event

    async def resume(
        self, name: str, tenant: str, after: Sequence[int] = (), timeout: float | None = None
    ) -> AsyncGenerator[Event]:
        """Yield the events of an existing generation after the tokens that the caller already has.

        Args:
            after: number of output tokens that the caller already has, by choice; empty if it has none.
            timeout: longest time in seconds; None uses the server's limit.

        Raises:
            GenerationNotFound: the tenant has no generation with this id.
            SessionExpired: the store no longer keeps its events.
            CursorAhead: the generation has fewer tokens than the caller claims to have.
            FieldInvalid: `after` does not match the number of choices.
        """
        services, first, deadline = self._services, Turn.named(name, tenant), self._deadline(timeout)
        with await services.calls.enter(first.tenant):
            positions = await self._positions(first, after)
        services.metrics.resumes.inc()
        elsewhere = sum(services.broadcasts.get(turn.name) is None for turn in positions)
        begin = partial(self._broadcast, deadline, RequestPlaces(services.generations, first.tenant))
        with await services.generations.enter(first.tenant, min(elsewhere, AT_ONCE)) as entrance:
            generations = [self._resumed(turn, begin, skip) for turn, skip in positions.items()]
            async with aclosing(joined(generations, entrance)) as events:
                async for event in events:
                    yield event

    async def _positions(self, first: Turn, after: Sequence[int]) -> dict[Turn, int]:
        """Return the turns of all choices, each with the number of its tokens that the caller has."""
        turns, view = await self._choices(first)
        positions = dict(zip(turns, skips_of(after, len(turns)), strict=True))
        for turn, skip in positions.items():
            stored = view if turn is first else await self._read(turn)
            committed = sum(len(each.tokens) for each in stored.rounds)
            if skip > committed:
                raise CursorAhead(f"the generation has {committed} tokens, not the {skip} that were received")
        return positions

    async def _resumed(self, turn: Turn, begin: _Begin, after: int) -> AsyncGenerator[Event]:
        broadcast = begin(turn, None, True)
        async with aclosing(_events_of(after, False, broadcast)) as events:
            async for event in events:
                yield event

    async def cancel(self, name: str, tenant: str) -> bool:
        """Cancel all choices of a generation and keep the committed output; return False if it had already ended.

        Raises:
            GenerationNotFound: the tenant has no generation with this id.
        """
        turn, sessions = Turn.named(name, tenant), self._services.sessions
        with await self._services.calls.enter(turn.tenant), _session_is_generation():
            try:
                turns, _ = await self._choices(turn)
            except (SessionExpired, SessionDiverged):
                turns = [turn]
            running = [await sessions.cancel(each.session_id, each.tenant, each.number) for each in turns]
        if any(running):
            self._services.metrics.cancellations.labels("request").inc()
        return any(running)

    async def answer_format(self, turn: Turn) -> str:
        """Return the answer format of a turn; raises GenerationNotFound or SessionExpired."""
        with await self._services.calls.enter(turn.tenant):
            view = await self._read(turn)
        return header_from_bytes(view.params, view.prompt).answer_format

    async def _choices(self, first: Turn) -> tuple[list[Turn], TurnView]:
        """Return the turns of all choices of a request, and the stored view of the first."""
        view = await self._read(first)
        indices = range(1, header_from_bytes(view.params, view.prompt).choices)
        others = [replace(first, session_id=choice_session_id(first.session_id, index)) for index in indices]
        return [first, *others], view

    async def _read(self, turn: Turn) -> TurnView:
        with _session_is_generation():
            return await self._services.sessions.read(turn.session_id, turn.tenant, turn.number)

    async def _open(
        self, request: GenerationRequest, session_id: str, encoded: Shared[_Encoded]
    ) -> tuple[Opened, Header]:
        """Open the request's turn in the session store; a repeated request gets the turn that it opened before.

        The choices of a prompt share its encoding.
        """
        services = self._services
        key, view = await turn_key(request, services.sessions)
        history, kept, expect_turn, called = await self._history(request, view)
        request = request.after_calls(called)
        model, fingerprint = services.models.of_session(kept, request.model)
        _, info = await model.pool.wait_for_verifier(session_id, fingerprint, services.settings.failover.arrival)
        encode = partial(_encoded, model.prompts, request, info.context_length, history)
        added, words, predicted = await encoded.get(encode)
        clamp, mode = services.settings.max_tokens_over_room == "clamp", services.settings.mode
        caller = pseudonyms(place_share(request.tenant))  # here, because a thread does not know the address
        if words:
            request = replace(request, sampling=replace(request.sampling, bad_words=words))
        if (reading := request.reading).thinking:
            reading = reading.after(model.tokenizer.spelled((*history[-_LAST:], *added[-_LAST:])[-_LAST:]))
            request = replace(request, sampling=reading.bound(request.sampling, request.thinking_budget))

        def written() -> tuple[Header, bytes]:
            ends = with_ends(info, request, model.tokenizer.decode.special.values())
            call = make_call(model.defaults.applied(request), (*history, *added), ends, mode, predicted, clamp=clamp)
            header = Header(
                call=replace(call, client=caller.client, user=caller.user),
                stop=request.stop,
                model=model.name,
                system_fingerprint=info.system_fingerprint,
                created=int(time.time()),
                priority=request.priority,
                answer_format=request.answer_format,
                reading=reading.text(),
                in_session=bool(request.session),
                resumable=request.resumable,
                choices=request.number,
                prompts=request.of_prompts,
                shows_stop=request.shows_stop,
                shows_special=request.shows_special,
            )
            return header, header_to_bytes(header)

        async def opening() -> tuple[Opened, Header]:
            header, params = await self._beside(request, written, len(history) + len(added))
            digest = await digest_of(request) if request.idempotency_key or request.session else ""
            with services.metrics.store_seconds.labels("open").time():
                opened = await services.sessions.open(
                    session_id,
                    key,
                    added,
                    params,
                    kept or services.models.kept(model, info.system_fingerprint),
                    request.tenant,
                    expect_turn,
                    digest,
                    create=not request.session,
                    base=len(history) or None,
                )
            return opened, header

        step = partial(services.openings.run, place_share(request.tenant), opening)
        opened, header = await retry(step, services.settings.store_patience, once=True)
        if not opened.repeated:
            services.metrics.prompt_tokens.inc(len(added))
            services.metrics.tenant_tokens.labels(key_tenant(request.tenant), "prompt").inc(len(added))
        return opened, header

    async def _history(
        self, request: GenerationRequest, view: SessionView | None
    ) -> tuple[tuple[int, ...], str, int | None, tuple[ToolCall, ...]]:
        """Return the session's tokens, its model fingerprint, the expected number of turns, and its last tool calls.

        A repeated request, whose turn already exists, does not read the history again.
        """
        if view is None:
            return (), "", request.expect_turn, ()
        expect = view.turn if request.expect_turn is None else request.expect_turn
        if view.n == 0 or view.request_turn is not None:
            return (), view.model_fingerprint, expect, ()
        models = self._services.models
        model, _ = models.of_session(view.model_fingerprint, request.model)
        last = await self._services.sessions.read(request.session, request.tenant, view.turn)

        def read() -> tuple[tuple[int, ...], tuple[ToolCall, ...]]:
            return history_of(last, model.tokenizer.decode), calls_of(last, models)

        length = sum(len(each.tokens) for each in last.rounds)
        history, called = await self._beside(request, read, length)
        return history, view.model_fingerprint, expect, called

    async def _beside(self, request: GenerationRequest, work: Callable[[], _Result], size: int) -> _Result:
        """Run work on a number of tokens: on the event loop if they are few, otherwise on a thread."""
        if size <= _QUICK:
            return work()
        return await self._services.beside.run(place_share(request.tenant), work, size)

    def _broadcast(
        self, deadline: float, places: RequestPlaces, turn: Turn, header: Header | None, resumable: bool
    ) -> Broadcast:
        """Return the broadcast of a turn; start it unless it runs here. `header` is set for a turn just opened."""
        services = self._services
        broadcast = services.broadcasts.join(turn.name)
        if broadcast is not None:
            return broadcast
        stream = TurnStream(services, turn, deadline, header, places)
        grace = services.settings.grace if resumable else 0.0
        return services.broadcasts.start(turn.name, stream, grace)

    def _deadline(self, timeout: float | None) -> float:
        limit = self._services.settings.request_timeout
        return time.monotonic() + (limit if timeout is None else min(timeout, limit))


async def _encoded(
    prompts: PromptEncoder, request: GenerationRequest, context_length: int, history: Sequence[int]
) -> _Encoded:
    added = await prompts.encode_request(request, context_length, history)
    words = await prompts.encode_words(request.bad_words, request.tenant)
    return added, words, await prompts.encode_prediction(request.prediction, request.tenant, context_length)


def _events_of(after: int, at_end: bool, broadcast: Broadcast) -> AsyncGenerator[Event]:
    """Return the events of a broadcast after `after` output tokens; with `at_end`, its rounds are joined at its end."""
    return without_first(broadcast.read_at_end() if at_end else broadcast.read(), after)


@contextmanager
def _session_is_generation() -> Iterator[None]:
    """Convert SessionNotFound to GenerationNotFound, because the caller named a generation."""
    try:
        yield
    except SessionNotFound as error:
        raise GenerationNotFound("no such generation", "id") from error


async def joined(generations: Sequence[AsyncGenerator[Event]], entrance: Places) -> AsyncGenerator[Event]:
    """Yield the events of a request's generations. Leave `entrance` at the first event, when all are admitted."""
    async with aclosing(merged(generations) if len(generations) > 1 else generations[0]) as events:
        async for event in events:
            entrance.leave()
            yield event


async def merged(generations: Sequence[AsyncGenerator[Event]]) -> AsyncGenerator[Event]:
    """Yield one Started with all prompts after all generations have started, then their events with choice indices.

    Closing the iterator early closes all generations.

    Raises:
        SpecdecError: the error of the first generation that failed.
    """
    waiting: dict[asyncio.Task[Event], int] = {}
    room = asyncio.Semaphore(AT_ONCE)  # otherwise 256 turns would be prepared in one iteration of the event loop

    async def first(generation: AsyncGenerator[Event]) -> Event:
        async with room:
            return await anext(generation)

    try:
        waiting = {asyncio.create_task(first(each)): index for index, each in enumerate(generations)}
        started = await asyncio.gather(*waiting)
        waiting = {asyncio.ensure_future(anext(each)): index for index, each in enumerate(generations)}
        begun = [each for each in started if isinstance(each, Started)]
        yield replace(begun[0], prompts=tuple(each.header.prompt for each in begun))
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=lambda task: waiting[task]):
                index = waiting.pop(task)
                if (event := _event(task)) is not None:
                    waiting[asyncio.ensure_future(anext(generations[index]))] = index
                    yield event if isinstance(event, Started) else event._replace(choice=index)
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for generation in generations:
            await generation.aclose()


def _event(task: "asyncio.Task[Event]") -> Event | None:
    """Return the task's event; None if the generation has ended."""
    return None if isinstance(task.exception(), StopAsyncIteration) else task.result()
