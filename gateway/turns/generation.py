"""The one use case: a request in, committed rounds out, for as often as anyone comes back to read them."""

import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace

import structlog

from gateway.request import GenerationRequest, new_id, tenant_of
from gateway.store.values import Opened, TurnView
from gateway.turns.broadcast import Broadcast
from gateway.turns.choices import merged
from gateway.turns.events import Event, Round
from gateway.turns.plan import Plan, check_model, make_plan
from gateway.turns.services import Services
from gateway.turns.turn import (
    Header,
    Turn,
    check_session_id,
    choice_session_id,
    header_from_bytes,
    header_to_bytes,
    new_session_id,
    session_id_for,
)
from gateway.turns.turn_stream import TurnStream
from specdec.errors import CursorAhead, FieldInvalid, GenerationNotFound, SessionExpired, SessionNotFound

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Draft:
    """A turn that is ready to be opened."""

    session_id: str
    added: tuple[int, ...]
    """Tokens the turn appends before its output."""
    header: Header
    expect_turn: int | None


class Generator:
    """Begins generations, and takes callers back to those that were begun."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def stream(
        self, request: GenerationRequest, timeout: float | None = None, after: Sequence[int] = ()
    ) -> AsyncGenerator[Event]:
        """Started, then Rounds, then Finished, as many as choices; a request that came before is told what it began.

        Args:
            request: what the caller wants.
            timeout: seconds the caller will wait; None takes the server's limit.
            after: output tokens of each choice that the caller has already; empty is none of any.

        Raises:
            RequestError: the model cannot do what is asked; before Started.
            ServiceError: something failed that could not be made good, at any time.
        """
        key = request.idempotency_key
        first = request.session or (session_id_for(request.tenant, key) if key else new_session_id())
        skips = _each(after, request.n)
        generations = [
            self._generation(each, choice_session_id(first, place), timeout, skips[place])
            for place, each in enumerate(request.choices())
        ]
        async with aclosing(merged(generations) if request.n > 1 else generations[0]) as events:
            async for event in events:
                yield event

    async def _generation(
        self, request: GenerationRequest, session_id: str, timeout: float | None, after: int
    ) -> AsyncGenerator[Event]:
        services, deadline = self._services, self._deadline(timeout)
        with services.drain.generation():
            check_model(request.model, services.settings.model.served_name)
            draft = await self._draft(request, session_id)
            opened = await self._open(request, draft)
            turn = Turn(draft.session_id, request.tenant, opened.turn)
            log = _log.bind(generation=turn.name, request=request.request_id)
            log.debug("generation_attached" if opened.repeated else "generation_began")
            if not opened.repeated:
                services.metrics.tokens.labels("prompt").inc(len(draft.added))
            header = None if opened.repeated else draft.header
            live = self._live(turn, deadline, header, request.resumable)
        async with aclosing(_behind(live, after)) as events:
            async for event in events:
                yield event

    async def resume(
        self, name: str, user: str, after: Sequence[int] = (), timeout: float | None = None
    ) -> AsyncGenerator[Event]:
        """The same events again, without what the caller has.

        Args:
            after: output tokens of each choice that the caller has; empty is none of any.

        Raises:
            GenerationNotFound: there is none of that name, or it is another user's.
            SessionExpired: its events are not kept any more.
            CursorAhead: it has fewer tokens than the caller says to have.
            FieldInvalid: it has another number of choices.
        """
        turns, view = await self._choices(Turn.named(name, tenant_of(user)))
        skips = _each(after, len(turns))
        for turn, skip in zip(turns, skips, strict=True):
            stored = view if turn is turns[0] else await self._read(turn)
            committed = sum(len(each.tokens) for each in stored.rounds)
            if skip > committed:
                raise CursorAhead(f"the generation has {committed} tokens, not the {skip} that were received")
        self._services.metrics.resumes.inc()
        deadline = self._deadline(timeout)
        told = [_behind(self._live(turn, deadline, None, True), skip) for turn, skip in zip(turns, skips, strict=True)]
        async with aclosing(merged(told) if len(told) > 1 else told[0]) as events:
            async for event in events:
                yield event

    async def cancel(self, name: str, user: str) -> bool:
        """Ask a generation to end with what is committed, all its choices; False when they had ended.

        Raises:
            GenerationNotFound: there is none of that name, or it is another user's.
        """
        turn = Turn.named(name, tenant_of(user))
        try:
            turns, _ = await self._choices(turn)
        except SessionExpired:
            turns = [turn]
        with _as_generation():
            asked = [await self._services.sessions.cancel(each.session_id, each.tenant, each.number) for each in turns]
        if any(asked):
            self._services.metrics.cancellations.labels("request").inc()
        return any(asked)

    async def _choices(self, first: Turn) -> tuple[list[Turn], TurnView]:
        """The turns of all choices, the first among them, and how that one stands."""
        view = await self._read(first)
        places = range(1, header_from_bytes(view.params, view.prompt).choices)
        others = [replace(first, session_id=choice_session_id(first.session_id, place)) for place in places]
        return [first, *others], view

    async def _read(self, turn: Turn) -> TurnView:
        with _as_generation():
            return await self._services.sessions.read(turn.session_id, turn.tenant, turn.number)

    async def _draft(self, request: GenerationRequest, session_id: str) -> _Draft:
        services = self._services
        if not request.session:
            added = await services.tokenizer.encode(request.prompt)
            plan, fingerprint = await self._plan(request, session_id, added, "")
            return _Draft(session_id, added, self._header(plan, fingerprint, request), request.expect_turn)
        check_session_id(session_id)
        view = await services.sessions.get(session_id, request.tenant, request.idempotency_key)
        fresh = view.n > 0 and view.request_turn is None
        history = tuple(await services.sessions.tokens(session_id)) if fresh else ()
        added = await services.tokenizer.encode_after(request.prompt, history)
        plan, fingerprint = await self._plan(request, session_id, (*history, *added), view.model_fingerprint)
        expected = view.turn if request.expect_turn is None else request.expect_turn
        return _Draft(session_id, added, self._header(plan, fingerprint, request), expected)

    async def _plan(
        self, request: GenerationRequest, session_id: str, prompt: tuple[int, ...], fingerprint: str
    ) -> tuple[Plan, str]:
        services = self._services
        _, info = await services.pool.find(session_id, fingerprint, services.settings.failover.arrival)
        return make_plan(request, prompt, info, services.settings.mode), info.system_fingerprint

    def _header(self, plan: Plan, fingerprint: str, request: GenerationRequest) -> Header:
        return Header(
            plan=plan,
            model=self._services.settings.model.served_name,
            system_fingerprint=fingerprint,
            created=int(time.time()),
            form=request.form,
            in_session=bool(request.session),
            resumable=request.resumable,
            choices=request.n,
        )

    async def _open(self, request: GenerationRequest, draft: _Draft) -> Opened:
        with self._services.metrics.store_seconds.labels("open").time():
            return await self._services.sessions.open(
                draft.session_id,
                request.idempotency_key or new_id(),
                draft.added,
                header_to_bytes(draft.header),
                draft.header.system_fingerprint,
                request.tenant,
                draft.expect_turn,
                request.digest,
                create=not request.session,
            )

    def _live(self, turn: Turn, deadline: float, header: Header | None, resumable: bool) -> Broadcast:
        services = self._services
        running = services.live.get(turn.name)
        if running is not None:
            return running
        telling = TurnStream(services, turn, deadline, header)
        return services.live.start(turn.name, telling.events(), services.settings.grace if resumable else 0.0)

    def _deadline(self, timeout: float | None) -> float:
        limit = self._services.settings.request_timeout
        return time.monotonic() + (limit if timeout is None else min(timeout, limit))


@contextmanager
def _as_generation() -> Iterator[None]:
    """What is not found inside is a generation to the caller, who named one."""
    try:
        yield
    except SessionNotFound as error:
        raise GenerationNotFound("no such generation", "id") from error


def _each(after: Sequence[int], choices: int) -> Sequence[int]:
    """The tokens that a caller has of each choice."""
    if after and len(after) != choices:
        raise FieldInvalid(f"the generation has {choices} choices, and the cursor speaks of {len(after)}", "received")
    return after or (0,) * choices


async def _behind(live: Broadcast, after: int) -> AsyncGenerator[Event]:
    """The events of a generation without its first `after` tokens."""
    skip = after
    async with aclosing(live.read()) as events:
        async for event in events:
            if not isinstance(event, Round) or not skip:
                yield event
                continue
            tokens, skip = event.tokens[skip:], max(0, skip - len(event.tokens))
            if tokens:
                yield replace(event, tokens=tokens, text="".join(token.text for token in tokens))
