"""Checks that grammars compile, in worker processes that a bad grammar may crash or block."""

import asyncio
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import structlog

from gateway.admission import FairQueue
from gateway.callers.caller import Share, place_share
from gateway.workers.process import WorkerLost, WorkerProcess
from specdec.errors import FieldInvalid, QueueFull
from specdec.sampling.grammar import Grammar

_QUICK_SECONDS = 0.25
"""Time limit in the quick lane, enough for nearly every grammar; slower ones move to the slow lane."""
_SECONDS = 5.0
"""Time limit of one compilation in the slow lane."""
_PERIOD = 60.0
_LATE = 3
"""Number of a caller's slow grammars in a period after which its further ones go to the slow lane directly."""
_BUDGET = 15.0
"""Seconds of slow compilation per caller and period."""
_CLIENT_BUDGET = 2 * _BUDGET
"""Seconds of slow compilation per address, with all users that it names, and period."""
_REMEMBERED = 512
"""Most grammars in the cache of outcomes."""
_WAITING = 256
"""Most grammars in a lane's queue; a caller may use half of it."""
_SHOWN = 300
"""Most characters of the compiler's message in an error."""
_COMPLEX = "is too complex to be compiled"
_WORKER = "gateway.text.grammar_worker"

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Outcome for a grammar: its translation, or the reason for refusal."""

    text: str = ""
    error: str = ""
    path: str = ""
    """Path of the error in a JSON Schema."""


class _Lane:
    """Worker process with a fair queue of callers and a time limit per grammar."""

    def __init__(self, name: str) -> None:
        self._queue = FairQueue(name, 1, _WAITING)
        self._worker = WorkerProcess(_WORKER)

    async def ask(
        self, tenant: Share, grammar: Grammar, seconds: float, known: Callable[[], _Outcome | None]
    ) -> _Outcome:
        """Return the outcome of a grammar; `known` returns the outcome if another request has found it meanwhile.

        Raises:
            QueueFull: too many grammars wait.
            WorkerLost: the compilation timed out, or crashed the worker twice.
        """
        await self._queue.enter(tenant)
        try:
            if (outcome := known()) is not None:
                return outcome
            question = json.dumps({"kind": grammar.kind, "text": grammar.text}).encode()
            return _Outcome(**json.loads(await self._worker.ask(question, seconds)))
        except WorkerLost:
            self._worker.warm()
            raise
        finally:
            self._queue.leave(tenant)

    async def close(self) -> None:
        await self._worker.close()


class GrammarChecker:
    """Checks grammars of many callers; quick compilations never wait for slow ones."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._outcomes: OrderedDict[str, _Outcome] = OrderedDict()
        """Outcomes by digest, most recently used last."""
        self._quick, self._slow = _Lane("grammars"), _Lane("slow grammars")
        self._late: dict[Share, Sequence[tuple[float, float]]] = {}
        """Slow grammars of the last period by caller: the time of each, and its seconds of slow compilation."""

    async def check(self, grammar: Grammar, param: str, tenant: str = "") -> Grammar:
        """Return the grammar in the notation that the services read.

        Args:
            grammar: grammar to check.
            param: field of the grammar, for error messages.
            tenant: caller, for fair sharing of the compiler.

        Raises:
            FieldInvalid: the grammar does not compile in time. The error names the field and the position in it.
            QueueFull: too many grammars wait, or the caller's time is used up.
        """
        digest = grammar.digest
        outcome = self._outcomes.get(digest) or await self._compiled(grammar, place_share(tenant), digest)
        self._outcomes[digest] = outcome
        self._outcomes.move_to_end(digest)
        if len(self._outcomes) > _REMEMBERED:
            self._outcomes.popitem(last=False)
        if outcome.error:
            place = param + outcome.path
            separator = " " if outcome.error == _COMPLEX else ": "
            raise FieldInvalid(f"{place}{separator}{' '.join(outcome.error.split())[:_SHOWN]}", place)
        return replace(grammar, text=outcome.text)

    async def close(self) -> None:
        """End the processes."""
        await asyncio.gather(self._quick.close(), self._slow.close())

    async def _compiled(self, grammar: Grammar, tenant: Share, digest: str) -> _Outcome:
        def known() -> _Outcome | None:
            return self._outcomes.get(digest)

        def known_or_refused() -> _Outcome | None:
            users = [each for each in self._late if each.client == tenant.client]
            for callers, budget in (([tenant], _BUDGET), (users, _CLIENT_BUDGET)):
                if sum(seconds for each in callers for _, seconds in self._of(each)) >= budget:
                    raise QueueFull(f"this caller's grammars took {budget:g} s of the last {_PERIOD:g} s to compile")
            return known()

        if len(self._of(tenant)) < _LATE:
            try:
                return await self._quick.ask(tenant, grammar, _QUICK_SECONDS, known)
            except WorkerLost:
                self._note(tenant, 0.0)
        try:
            return await self._slow.ask(tenant, grammar, _SECONDS, known_or_refused)
        except WorkerLost as error:
            self._note(tenant, _SECONDS)
            _log.warning("grammar_too_complex", digest=digest, error=str(error))
            return _Outcome(error=_COMPLEX)

    def _of(self, tenant: Share) -> Sequence[tuple[float, float]]:
        """Return the caller's slow grammars of the last period."""
        since = self._clock() - _PERIOD
        return [late for late in self._late.get(tenant, ()) if late[0] > since]

    def _note(self, tenant: Share, seconds: float) -> None:
        self._late[tenant] = [*self._of(tenant), (self._clock(), seconds)]
        if len(self._late) > _REMEMBERED:
            self._late = {each: late for each in self._late if (late := self._of(each))}
