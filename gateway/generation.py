"""The one use case: a request in, committed rounds out, for as often as anyone comes back to read them."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace

import structlog

from gateway.choices import merged
from gateway.events import Event, Round
from gateway.live import Live
from gateway.plan import Plan, check_model, make_plan
from gateway.request import GenerationRequest, new_id, tenant_of
from gateway.services import Services
from gateway.store.sessions import Opened
from gateway.telling import Telling
from gateway.turns import Header, Turn, check_session_id, header_to_bytes, new_session_id, session_id_for
from specdec.errors import CursorAhead, GenerationNotFound, SessionNotFound

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
        self, request: GenerationRequest, timeout: float | None = None, after: int = 0
    ) -> AsyncGenerator[Event]:
        """Started, then Rounds, then Finished, as many as choices; a request that came before is told what it began.

        Args:
            request: what the caller wants.
            timeout: seconds the caller will wait; None takes the server's limit.
            after: output tokens the caller has already.

        Raises:
            RequestError: the model cannot do what is asked; before Started.
            ServiceError: something failed that could not be made good, at any time.
        """
        generations = [self._generation(each, timeout, after) for each in request.choices()]
        async with aclosing(merged(generations) if request.n > 1 else generations[0]) as events:
            async for event in events:
                yield event

    async def _generation(self, request: GenerationRequest, timeout: float | None, after: int) -> AsyncGenerator[Event]:
        services, deadline = self._services, self._deadline(timeout)
        with services.drain.generation():
            check_model(request.model, services.settings.model.served_name)
            draft = await self._draft(request)
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

    async def resume(self, name: str, user: str, after: int = 0, timeout: float | None = None) -> AsyncGenerator[Event]:
        """The same events again, without the first `after` tokens of the output.

        Raises:
            GenerationNotFound: there is none of that name, or it is another user's.
            SessionExpired: its events are not kept any more.
            CursorAhead: it has fewer tokens than the caller says to have.
        """
        turn = Turn.named(name, tenant_of(user))
        try:
            view = await self._services.sessions.read(turn.session_id, turn.tenant, turn.number)
        except SessionNotFound as error:
            raise GenerationNotFound("no such generation", "id") from error
        committed = sum(len(stored.tokens) for stored in view.rounds)
        if after > committed:
            raise CursorAhead(f"the generation has {committed} tokens, not the {after} that were received")
        self._services.metrics.resumes.inc()
        live = self._live(turn, self._deadline(timeout), None, True)
        async with aclosing(_behind(live, after)) as events:
            async for event in events:
                yield event

    async def cancel(self, name: str, user: str) -> bool:
        """Ask a generation to end with what is committed; False when it had ended.

        Raises:
            GenerationNotFound: there is none of that name, or it is another user's.
        """
        turn = Turn.named(name, tenant_of(user))
        try:
            asked = await self._services.sessions.cancel(turn.session_id, turn.tenant, turn.number)
        except SessionNotFound as error:
            raise GenerationNotFound("no such generation", "id") from error
        if asked:
            self._services.metrics.cancellations.labels("request").inc()
        return asked

    async def _draft(self, request: GenerationRequest) -> _Draft:
        services = self._services
        if not request.session:
            key = request.idempotency_key
            session_id = session_id_for(request.tenant, key) if key else new_session_id()
            added = await services.tokenizer.encode(request.prompt)
            plan, fingerprint = await self._plan(request, session_id, added, "")
            return _Draft(session_id, added, self._header(plan, fingerprint, request), request.expect_turn)
        session_id = check_session_id(request.session)
        view = await services.sessions.look(session_id, request.tenant, request.idempotency_key)
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

    def _live(self, turn: Turn, deadline: float, header: Header | None, resumable: bool) -> Live:
        services = self._services
        running = services.live.get(turn.name)
        if running is not None:
            return running
        telling = Telling(services, turn, deadline, header)
        return services.live.start(turn.name, telling.events(), services.settings.grace if resumable else 0.0)

    def _deadline(self, timeout: float | None) -> float:
        limit = self._services.settings.request_timeout
        return time.monotonic() + (limit if timeout is None else min(timeout, limit))


async def _behind(live: Live, after: int) -> AsyncGenerator[Event]:
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
