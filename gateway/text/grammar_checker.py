"""Whether a grammar can be compiled, found out in processes that a bad one may end or keep busy."""

import asyncio
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import structlog

from gateway.callers.caller import place_share
from gateway.fair_queue import FairQueue, Share
from gateway.workers.process import WorkerLost, WorkerProcess
from specdec.errors import FieldInvalid, QueueFull
from specdec.sampling.grammar import Grammar

_QUICK_SECONDS = 0.25
"""Time in which nearly every grammar is compiled; one that takes longer waits among its like."""
_SECONDS = 5.0
"""Longest time that a grammar may take to be compiled."""
_PERIOD = 60.0
_LATE = 3
"""Grammars of a caller in a period that were not compiled quickly, after which its next ones wait among their like."""
_BUDGET = 15.0
"""Seconds of a period for which the grammars of one caller may be compiled slowly."""
_REMEMBERED = 512
"""Grammars whose outcome is known."""
_WAITING = 256
"""Most grammars that wait for a process; a caller may have half of them."""
_SHOWN = 300
"""Characters of the compiler's message that are shown."""
_COMPLEX = "is too complex to be compiled"
_WORKER = "gateway.text.grammar_worker"

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What became of a grammar: its translation, or why it is refused."""

    text: str = ""
    error: str = ""
    path: str = ""
    """Place of the error in a JSON Schema."""


class _Lane:
    """A worker that callers have in turn, for so many seconds each."""

    def __init__(self, name: str) -> None:
        self._queue = FairQueue(name, 1, _WAITING)
        self._worker = WorkerProcess(_WORKER)

    async def ask(
        self, tenant: Share, grammar: Grammar, seconds: float, known: Callable[[], _Outcome | None]
    ) -> _Outcome:
        """The outcome of a grammar; `known` tells whether another question has found it meanwhile.

        Raises:
            QueueFull: too many grammars wait.
            WorkerLost: it took longer, or the worker died of it.
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
    """Checks grammars of many callers: what is compiled quickly never waits for what is not."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._outcomes: OrderedDict[str, _Outcome] = OrderedDict()
        """By digest, the latest last."""
        self._quick, self._slow = _Lane("grammars"), _Lane("slow grammars")
        self._late: dict[Share, Sequence[tuple[float, float]]] = {}
        """By caller, when its grammars of the last period were late, and for how many seconds they were compiled."""

    async def check(self, grammar: Grammar | None, param: str, tenant: str = "") -> Grammar | None:
        """The grammar in the notation that the services read.

        Args:
            param: the field that it came from.
            tenant: who shares the time of the compiler with all others.

        Raises:
            FieldInvalid: it cannot be compiled, or not in time; the error names the field and the place in it.
            QueueFull: too many grammars wait.
        """
        if grammar is None:
            return None
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
            if sum(seconds for _, seconds in self._of(tenant)) >= _BUDGET:
                raise QueueFull(f"this caller's grammars took {_BUDGET:g} s of the last {_PERIOD:g} s to compile")
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
        """What the caller's late grammars of the last period took."""
        since = self._clock() - _PERIOD
        return [late for late in self._late.get(tenant, ()) if late[0] > since]

    def _note(self, tenant: Share, seconds: float) -> None:
        self._late[tenant] = [*self._of(tenant), (self._clock(), seconds)]
        if len(self._late) > _REMEMBERED:
            self._late = {each: late for each in self._late if (late := self._of(each))}
