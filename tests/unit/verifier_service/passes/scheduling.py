"""The loop of a table engine, and sequences whose rows a test writes and awaits."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path

from specdec.serving.settings import ModelSettings
from tests.unit.verifier_service.verifier_fakes import TableEngine, make_metrics, make_row, make_speculation
from verifier_service.backends.batch_plan import Gathers, Outcome, Row
from verifier_service.backends.model_step import BatchModel
from verifier_service.backends.model_thread import ModelThread
from verifier_service.config import VerifierSettings
from verifier_service.drafts.drafts import Drafts, Proposal
from verifier_service.metrics import VerifierMetrics
from verifier_service.passes.engine_loop import EngineLoop

SETTINGS = VerifierSettings(model=ModelSettings(path=Path("model")))
Verdict = asyncio.Future[Outcome | None]


class WrittenDrafts(Drafts):
    """A draft that arrives only when the next pass begins, if at all."""

    def __init__(self, gathers: Gathers, made: Callable[[], Proposal | None]) -> None:
        """`made` returns the draft when the pass begins, or None to keep the round waiting."""
        self._gathers = gathers
        self._made = made
        self._hurried = False

    @property
    def gathers(self) -> Gathers:
        return self._gathers

    def stop_waiting(self) -> None:
        self._hurried = True

    def proposal(self) -> Proposal | None:
        return self._made() if self._hurried else None


class WrittenSequence:
    """A sequence whose rows a test writes. Each row's outcome resolves a future."""

    def __init__(self, row: Row, then: Callable[[Outcome], Row | None] = lambda _: None) -> None:
        """`then` returns the row that follows an outcome at once, or None to leave it to the test."""
        self.row = row
        self.drafts = Drafts()
        self.entered: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.verdict: Verdict | None = None
        self.on_draft: Callable[[Proposal], None] = lambda proposal: None
        self.loop: EngineLoop | None = None
        self.first: Row | None = None
        """Row submitted immediately after the admission."""
        self._then = then

    def admitted(self, found: int) -> None:
        if not self.entered.done():
            self.entered.set_result(found)
        if self.first is not None and self.loop is not None:
            self.loop.submit(self, self.first)

    def conclude(self, outcome: Outcome | None) -> None:
        if outcome is not None and (following := self._then(outcome)) is not None:
            assert self.loop is not None
            self.loop.submit(self, following)
            return
        verdict, self.verdict = self.verdict, None
        if verdict is not None and not verdict.cancelled():
            verdict.set_result(outcome)

    def tell(self) -> None:
        """Do nothing."""

    def drafted(self, proposal: Proposal) -> None:
        self.on_draft(proposal)

    def fail(self, error: Exception) -> None:
        for future in (self.entered, self.verdict):
            if future is not None and not future.done():
                future.set_exception(error)

    def guarded(self, step: Callable[..., None], *arguments: object) -> None:
        try:
            step(*arguments)
        except Exception as error:  # noqa: BLE001 - as a sequence does it
            self.fail(error)


class AwaitedLoop:
    """The loop, with the outcomes of rows as futures."""

    def __init__(self, loop: EngineLoop) -> None:
        self.engine_loop = loop
        self.sequences: dict[str, WrittenSequence] = {}

    @asynccontextmanager
    async def admitted(self, row: Row) -> AsyncIterator[int]:
        """Admit a sequence, which leaves with the context."""
        sequence = WrittenSequence(row)
        sequence.loop = self.engine_loop
        self.engine_loop.enter(sequence)
        self.sequences[row.kv_name] = sequence
        try:
            yield await sequence.entered
        finally:
            self.engine_loop.leave(sequence)

    def verify(self, row: Row) -> Verdict:
        """Submit a row and return its outcome."""
        sequence = self.sequences[row.kv_name]
        sequence.verdict = verdict = asyncio.get_running_loop().create_future()
        self.engine_loop.submit(sequence, row)
        return verdict

    def begin(self, admission: Row, first: Row) -> Verdict:
        """Enter a sequence that submits `first` as soon as it is admitted, and return the outcome of that row."""
        sequence = WrittenSequence(admission)
        sequence.loop, sequence.first = self.engine_loop, first
        sequence.verdict = verdict = asyncio.get_running_loop().create_future()
        self.sequences[admission.kv_name] = sequence
        self.engine_loop.enter(sequence)
        return verdict

    async def prefill(self, row: Row) -> None:
        """Prefill up to the goal of a row."""
        await self.verify(row)

    async def decode(self, first: Row, count: int) -> tuple[int, ...]:
        """Return at least `count` tokens of plain rounds, each submitted after the previous one is concluded."""
        sequence, made = self.sequences[first.kv_name], list(first.tokens)
        start = len(made)

        def following(outcome: Outcome) -> Row | None:
            made.extend(outcome.verdict.tokens)
            following = first.successor(tuple(made)) if first.runs_ahead else make_row(first.kv_name, tuple(made))
            return following if len(made) < start + count else None

        sequence._then = following
        await self.verify(first)
        sequence._then = lambda _: None
        return tuple(made[start:])

    @contextmanager
    def expected(self, gathers: Gathers, made: Callable[[], Proposal | None] = lambda: None) -> Iterator[None]:
        """Keep a sequence waiting for its draft inside the context."""
        sequence = WrittenSequence(make_row("waits"))
        sequence.drafts = WrittenDrafts(gathers, made)
        waits = self.engine_loop._waits
        waits.begin(sequence, 1)
        try:
            yield
        finally:
            waits.drop(sequence)

    def lingering(self, row: Callable[[], Row]) -> Verdict:
        """Return the outcome of a round for which no pass waits. Its row is made when the next pass begins."""
        sequence = self.sequences[row().kv_name]
        sequence.drafts = WrittenDrafts(Gathers.NOT, Proposal)
        sequence.verdict = verdict = asyncio.get_running_loop().create_future()
        sequence.on_draft = lambda _: self.engine_loop.submit(sequence, row())
        self.engine_loop.await_draft(sequence, 1)
        return verdict


@asynccontextmanager
async def scheduling(
    engine: TableEngine,
    max_waiting: int = 8,
    draft_tokens: int = 1000,
    step_sessions: int | None = None,
    groups: int = 1,
    chunk_tokens: int = 16,
    metrics: VerifierMetrics | None = None,
) -> AsyncIterator[AwaitedLoop]:
    """Run a loop."""
    settings = VerifierSettings(
        model=ModelSettings(path=Path("model")),
        max_waiting=max_waiting,
        chunk_tokens=chunk_tokens,
        draft_tokens=draft_tokens,
        step_sessions=step_sessions,
    )
    with ThreadPoolExecutor(1) as thread:
        model = ModelThread(engine, settings)
        made = awaited_loop(model, thread, settings, groups, metrics)
        running = asyncio.create_task(made.engine_loop.run())
        try:
            yield made
        finally:
            running.cancel()
            await asyncio.wait([running])


def awaited_loop(
    model: BatchModel,
    thread: Executor,
    settings: VerifierSettings = SETTINGS,
    groups: int = 1,
    metrics: VerifierMetrics | None = None,
) -> AwaitedLoop:
    """Return a loop that the test runs."""
    speculation = make_speculation(groups=groups)
    return AwaitedLoop(EngineLoop(model, thread, settings, speculation, metrics or make_metrics()))


def row(session: str) -> Row:
    return make_row(session, (3,))


def admitted(loop: AwaitedLoop, session: str, tokens: int, limit: int = 10) -> AbstractAsyncContextManager[int]:
    return loop.admitted(make_row(session, range(tokens), 0, limit=limit))


async def steps(count: int = 20) -> None:
    """Give the loop and the thread time to work."""
    for _ in range(count):
        await asyncio.sleep(0.001)
