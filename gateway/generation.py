"""The one use case: a request in, committed rounds out.

A round is shown only after the session store has it, so whatever is lost, nothing shown is taken back or said twice.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

import structlog

from gateway.balancer import VerifierPool
from gateway.choices import merged
from gateway.config import GatewaySettings
from gateway.detokenizer import Detokenizer
from gateway.drain import Drain
from gateway.events import Event, Finished, RejectedToken, Round, Started
from gateway.failover import Failover
from gateway.metrics import GatewayMetrics
from gateway.output import OutputText, OutputToken, Taken
from gateway.ownership import OwnedSession
from gateway.plan import Plan, check_model, make_plan
from gateway.request import GenerationRequest, new_id
from gateway.sessions import Commit, SessionStore
from gateway.statistics import Statistics
from gateway.tokenizer import Tokenizer
from gateway.verifier import Call, VerifiedRound, Verifier, VerifierInfo
from specdec.errors import InternalError, SpecdecError
from specdec.params import FinishReason

TENANT = "default"

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Services:
    """What a generation works with."""

    tokenizer: Tokenizer
    pool: VerifierPool
    sessions: SessionStore
    drain: Drain
    metrics: GatewayMetrics
    settings: GatewaySettings
    owner: str
    """This process, as the session store knows it."""


class Generator:
    """Runs generations."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def stream(self, request: GenerationRequest, timeout: float | None = None) -> AsyncGenerator[Event]:
        """Started, then Rounds, then Finished, as many as choices; closing it early cancels everything everywhere.

        Args:
            request: what the caller wants.
            timeout: seconds the caller will wait; None takes the server's limit.

        Raises:
            RequestError: the model cannot do what is asked; before Started.
            ServiceError: something failed that could not be made good, at any time.
        """
        generations = [self._generation(each, timeout) for each in request.choices()]
        async with aclosing(merged(generations) if request.n > 1 else generations[0]) as events:
            async for event in events:
                yield event

    async def _generation(self, request: GenerationRequest, timeout: float | None) -> AsyncGenerator[Event]:
        services = self._services
        limit = services.settings.request_timeout
        deadline = time.monotonic() + (limit if timeout is None else min(timeout, limit))
        with services.drain.generation():
            check_model(request.model, services.settings.model.served_name)
            prompt = await services.tokenizer.encode(request.prompt)
            session_id = new_id()
            verifier, info = services.pool.choose(session_id)
            plan = make_plan(request, prompt, info, services.settings.mode)
            _log.debug("generation_began", generation=session_id, request=request.request_id, verifier=verifier.address)
            run = _Run(services, session_id, plan, info, deadline)
            async with aclosing(run.events(verifier)) as events:
                async for event in events:
                    yield event


class _Run:
    """One generation while it runs: the committed tokens, and what of them may be shown."""

    def __init__(self, services: Services, session_id: str, plan: Plan, info: VerifierInfo, deadline: float) -> None:
        self._services = services
        self._plan = plan
        self._info = info
        self._deadline = deadline
        self._session = OwnedSession(services.sessions, session_id, services.owner, services.metrics)
        self._tokens = list(plan.prompt)
        detokenizer = Detokenizer(services.tokenizer.decode, plan.prompt)
        self._text = OutputText(detokenizer, plan.stop, plan.sampling.min_tokens)
        self._statistics = Statistics(plan.speculation)
        self._finish: FinishReason | None = None
        self._stop = ""
        self._began = self._last = time.monotonic()

    async def events(self, verifier: Verifier) -> AsyncGenerator[Event]:
        """Open the session, then commit and show round after round."""
        services, ended = self._services, "error"
        await services.sessions.open(
            self._session.id,
            self._session.id,
            self._plan.prompt,
            self._plan.parameters(),
            self._info.system_fingerprint,
            TENANT,
        )
        services.metrics.tokens.labels("prompt").inc(len(self._plan.prompt))
        try:
            async with self._session.kept(services.settings.lease):
                yield self._started()
                async with aclosing(self._rounds(verifier)) as rounds:
                    async for shown in rounds:
                        yield shown
                finished = self._finished()
                ended = finished.reason.value
                yield finished
        except (GeneratorExit, asyncio.CancelledError):
            ended = "cancelled" if self._finish is None else ended
            raise
        except SpecdecError as error:
            ended = error.reason
            raise
        finally:
            self._note_end(ended)

    async def _rounds(self, verifier: Verifier) -> AsyncGenerator[Round]:
        services = self._services
        failover = Failover(services.pool, services.settings.failover, services.metrics)
        rounds = failover.rounds(verifier, self._info.system_fingerprint, self._next_call, self._deadline)
        async with aclosing(rounds):
            async for verified in rounds:
                yield await self._commit(verified)
                if self._finish is not None:
                    return
                services.drain.check()

    async def _next_call(self) -> Call:
        """The call for the rest of the generation, under a new epoch."""
        return self._plan.call(self._session.id, await self._session.acquire(), self._tokens)

    async def _commit(self, verified: VerifiedRound) -> Round:
        """Cut the round where the output ends, have the store keep it, and only then make it showable."""
        if verified.base_len != len(self._tokens):
            raise InternalError(f"a round begins at {verified.base_len}, not at {len(self._tokens)}")
        taken = self._text.take(verified.tokens, verified.origins, verified.logprobs)
        accepted = min(verified.accepted, taken.count)
        finish = FinishReason.STOP if taken.stop else verified.finish
        rest = self._text.finish() if finish else Taken(0, ())
        self._stop = taken.stop or rest.stop
        self._finish = FinishReason.STOP if rest.stop else finish
        cancelled = await self._store(
            verified.tokens[: taken.count], taken.text + rest.text, len(verified.draft), accepted
        )
        self._observe(verified, accepted, taken.count)
        if cancelled and self._finish is None:
            rest = await self._cancel()
        return self._round(verified, accepted, (*taken.released, *rest.released))

    async def _cancel(self) -> Taken:
        """Someone asked for the end: what is committed is the output."""
        rest = self._text.finish()
        self._finish = FinishReason.STOP
        await self._store((), rest.text, 0, 0)
        return rest

    async def _store(self, tokens: tuple[int, ...], text: str, drafted: int, accepted: int) -> bool:
        commit = Commit(
            session_id=self._session.id,
            epoch=self._session.epoch,
            base=len(self._tokens),
            tokens=tokens,
            text=text,
            tail=self._text.tail,
            drafted=drafted,
            accepted=accepted,
            finish=self._finish.value if self._finish else "",
        )
        cancelled = await self._session.commit(commit)
        self._tokens += tokens
        return cancelled

    def _observe(self, verified: VerifiedRound, accepted: int, kept: int) -> None:
        metrics, now = self._services.metrics, time.monotonic()
        first = len(self._tokens) - len(self._plan.prompt) == kept
        (metrics.first_token_seconds if first else metrics.round_seconds).observe(now - self._last)
        self._last = now
        metrics.count_round(verified, accepted, kept)
        self._statistics.add(len(verified.draft), accepted, verified.fallback_reason)

    def _started(self) -> Started:
        return Started(
            id=self._session.id,
            created=int(time.time()),
            model=self._services.settings.model.served_name,
            prompt_tokens=self._plan.prompt,
            seed=self._plan.sampling.seed,
            system_fingerprint=self._info.system_fingerprint,
        )

    def _round(self, verified: VerifiedRound, accepted: int, tokens: tuple[OutputToken, ...]) -> Round:
        decode = self._services.tokenizer.decode
        return Round(
            text="".join(token.text for token in tokens),
            tokens=tokens,
            rejected=tuple(RejectedToken(token, decode([token])) for token in verified.draft[accepted:]),
            drafted=len(verified.draft),
            accepted=accepted,
            committed=len(self._tokens) - len(self._plan.prompt),
        )

    def _finished(self) -> Finished:
        if self._finish is None:
            raise InternalError("the rounds ended without a finish")
        return Finished(
            reason=self._finish,
            matched_stop=self._stop,
            prompt_tokens=len(self._plan.prompt),
            completion_tokens=len(self._tokens) - len(self._plan.prompt),
            summary=self._statistics.summary(),
        )

    def _note_end(self, ended: str) -> None:
        if ended == "cancelled":
            self._services.metrics.cancellations.labels("client").inc()
        summary = self._statistics.summary()
        _log.info(
            "generation_ended",
            generation=self._session.id,
            ended=ended,
            prompt_tokens=len(self._plan.prompt),
            completion_tokens=len(self._tokens) - len(self._plan.prompt),
            drafted=summary.num_draft_tokens,
            accepted=summary.num_accepted_draft_tokens,
            fallbacks=dict(summary.fallbacks),
            seconds=round(time.monotonic() - self._began, 6),
        )
