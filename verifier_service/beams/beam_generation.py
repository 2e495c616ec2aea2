"""One beam search as a generation: passes on the model thread, proposals of a drafter, and one round at the end."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Protocol, TypeVar

import structlog

from specdec.beams.options import BeamOptions, BeamReport
from specdec.beams.search import BeamSearch
from specdec.errors import InternalError
from specdec.rules.speculation import Origin
from specdec.sampling.params import FinishReason
from specdec.wire.beams import ProposedBeam
from specdec.wire.generation import GenerationCall, Round, Timing
from verifier_service.beams.beam_drafts import BeamDrafts
from verifier_service.beams.beam_tally import BeamPlace
from verifier_service.beams.target_beams import NoRoom, TargetBeams

_RETRY_SECONDS = 0.1
"""Wait before another attempt to get memory for the beams."""
_Result = TypeVar("_Result")

_log = structlog.get_logger()


class RoundReader(Protocol):
    """Receiver of the round, as of a sequence's rounds."""

    def add(self, done: Round) -> None:
        """Receive the round, which has a finish reason."""

    def failed(self, error: Exception) -> None:
        """Receive the error that ends the generation."""


class BeamGeneration:
    """A search from its call to its one round. All methods run on the event loop."""

    def __init__(  # noqa: PLR0913 - the parts of a search
        self,
        call: GenerationCall,
        options: BeamOptions,
        limit: int,
        target: TargetBeams,
        drafts: BeamDrafts,
        thread: Executor,
        interrupt: Callable[[], None],
        place: BeamPlace,
        count: Callable[[Round, int], None],
        reader: RoundReader,
    ) -> None:
        """Create a search; `start` begins it.

        Args:
            limit: largest length of the sequence, in tokens.
            target: the target's beams.
            drafts: proposals of a drafter.
            thread: executor whose only worker owns the target.
            interrupt: called before each pass, so that passes that run ahead make room for it.
            place: the search in the tally of its process.
            count: called with the round before the reader gets it.
            reader: receives the round.
        """
        self.ended = False
        self.on_end: Callable[[], None] = lambda: None
        """Called once when the search ends."""
        self._call = call
        self._search = BeamSearch(options, frozenset(call.stop_token_ids), limit - len(call.tokens))
        self._target = target
        self._drafts = drafts
        self._thread = thread
        self._interrupt = interrupt
        self._place = place
        self._count = count
        self._reader = reader
        self._drafting = 0.0
        """Seconds of waiting for proposals."""
        self._verifying = 0.0
        """Seconds of the target's passes, with the wait for the thread."""
        self._steps = self._passes = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin the search."""
        self._task = asyncio.create_task(self._run())

    def grant(self, length: float) -> None:
        """Do nothing: a search has one round, which needs no credit."""

    def fail(self, error: Exception) -> None:
        """End with an error."""
        if not self.ended:
            self.close()
            self._reader.failed(error)

    def close(self) -> None:
        """End now. The reader receives nothing more."""
        if self.ended:
            return
        self.ended = True
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        self._place.leave()
        self.on_end()

    async def _run(self) -> None:
        try:
            try:
                await self._searched()
            finally:
                await asyncio.shield(self._cleared())
        except Exception as error:  # noqa: BLE001 - a failing search ends alone
            _log.error("beam_search_failed", exc_info=error)
            self.fail(InternalError("the model failed on this search"))
        else:
            self._tell()

    async def _searched(self) -> None:
        while not await self._with_room(self._target.prefill):
            pass
        while not self._search.done:
            began, drafted = time.perf_counter(), self._drafts.worth()
            proposed = await self._drafts.propose(self._search) if drafted else ()
            self._drafting += time.perf_counter() - began
            beams = len(self._search.running)
            self._search, steps = await self._with_room(partial(self._advance, proposed))
            if self._passes:  # the first pass computes the end of the prompt, too
                self._drafts.observe(drafted, time.perf_counter() - began, steps)
            self._place.passed(beams, len(proposed), steps)
            self._steps += steps
            self._passes += 1

    def _advance(self, proposed: tuple[ProposedBeam, ...]) -> tuple[BeamSearch, int]:
        return self._target.advance(self._search, proposed)

    async def _with_room(self, work: Callable[[], _Result]) -> _Result:
        """Run work on the model thread, again and again until there is memory for it."""
        while True:
            began = time.perf_counter()
            try:
                done = await self._on_thread(work)
                self._place.hold()
                return done
            except NoRoom:
                self._place.wait()
                await self._on_thread(self._target.release)
                await asyncio.sleep(_RETRY_SECONDS)
            finally:
                self._verifying += time.perf_counter() - began

    async def _on_thread(self, work: Callable[[], _Result]) -> _Result:
        self._interrupt()
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _cleared(self) -> None:
        await self._on_thread(self._target.release)

    def _tell(self) -> None:
        """Send the best beam to the reader as one round."""
        if self.ended:
            return
        best = self._search.best
        done = Round(
            base_len=len(self._call.tokens),
            tokens=best.tokens,
            origins=(Origin.PLAIN,) * len(best.tokens),
            finish=FinishReason.STOP if best.tokens[-1] in self._search.ends else FinishReason.LENGTH,
            timing=Timing(draft=self._drafting, verify=self._verifying),
            cached_tokens=min(self._target.cached, self._call.prompt_len),
            beams=BeamReport(best.score, self._steps, self._steps - self._passes),
        )
        self._place.found()
        self._count(done, 0)
        self._reader.add(done)
        self.close()
