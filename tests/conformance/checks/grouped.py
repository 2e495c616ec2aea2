"""A check of two groups that alternate in the real loop: every verdict is for the row of its own session."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

from specdec.serving.settings import ModelSettings
from tests.conformance.checks.check import Check, count
from tests.conformance.model_folders import root
from tests.unit.verifier_service.verifier_fakes import (
    TableEngine,
    following,
    make_metrics,
    make_row,
    make_speculation,
    point_mass,
)
from verifier_service.backends.batch_plan import Gathers, Outcome
from verifier_service.backends.model_thread import ModelThread
from verifier_service.config import VerifierSettings
from verifier_service.drafts.drafts import Drafts, Proposal
from verifier_service.passes.engine_loop import EngineLoop

SESSIONS = 8
ROUNDS = 6
LIMIT = 64


def strayed_tokens() -> float:
    """Count tokens that differ from the target's, plus 1 if no pass contained half of the sessions."""
    engine = TableEngine()
    strayed = asyncio.run(_serve(engine))
    return strayed + (SESSIONS // 2 not in map(len, engine.batches))


async def _serve(engine: TableEngine) -> int:
    settings = VerifierSettings(model=ModelSettings(path=root()))
    with ThreadPoolExecutor(1) as thread:
        loop = EngineLoop(ModelThread(engine, settings), thread, settings, make_speculation(groups=2), make_metrics())
        running = asyncio.create_task(loop.run())
        sequences = [Drafting(loop, number) for number in range(SESSIONS)]
        try:
            for each in sequences:
                loop.enter(each)
            return sum([await each.strayed for each in sequences])
        finally:
            running.cancel()
            await asyncio.wait([running])


class NextToken(Drafts):
    """Drafts of the next token. Passes wait for them, and they arrive one iteration of the event loop later."""

    def __init__(self) -> None:
        self.last = 0
        self._there = False

    @property
    def gathers(self) -> Gathers:
        return Gathers.ALWAYS

    def request(self, gamma: int, changed: Callable[[], object]) -> None:
        self._there = False
        asyncio.get_running_loop().call_soon(self._come, changed)

    def proposal(self) -> Proposal | None:
        return Proposal(point_mass(following(self.last))) if self._there else None

    def _come(self, changed: Callable[[], object]) -> None:
        self._there = True
        changed()


class Drafting:
    """A sequence of a number of rounds with drafts. It counts the tokens that do not follow those before them."""

    def __init__(self, loop: EngineLoop, number: int) -> None:
        self.row = make_row(f"s{number}", (number,), 0, limit=LIMIT)
        self.drafts = NextToken()
        self.strayed: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._loop = loop
        self._tokens = [number]
        self._rounds = 0

    def admitted(self, found: int) -> None:
        self._go_on()

    def conclude(self, outcome: Outcome | None) -> None:
        assert outcome is not None
        self._tokens += outcome.verdict.tokens
        self._rounds += 1
        if self._rounds < ROUNDS:
            self._go_on()
            return
        self._loop.leave(self)
        self.strayed.set_result(sum(after != following(before) for before, after in pairwise(self._tokens)))

    def drafted(self, proposal: Proposal) -> None:
        self._loop.submit(self, make_row(self.row.kv_name, tuple(self._tokens), draft=proposal.draft, limit=LIMIT))

    def tell(self) -> None:
        """Do nothing."""

    def fail(self, error: Exception) -> None:
        if not self.strayed.done():
            self.strayed.set_exception(error)

    def guarded(self, step: Callable[..., None], *arguments: object) -> None:
        try:
            step(*arguments)
        except Exception as error:  # noqa: BLE001 - as a sequence does it
            self.fail(error)

    def _go_on(self) -> None:
        self.drafts.last = self._tokens[-1]
        self._loop.await_draft(self, 1)


CHECKS: tuple[Check, ...] = (count("verdicts of two groups", strayed_tokens),)
