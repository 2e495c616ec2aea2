"""Proposed beams from a drafter. A drafter that fails, is late or is absent proposes none, which costs only time."""

import asyncio
import time
from collections.abc import Callable

import grpc.aio
import structlog

from specdec.beams.search import BeamSearch
from specdec.errors import SpecdecError
from specdec.wire.beams import MOST_NODES, BeamAsk, ProposedBeam
from specdec.wire.generation import GenerationCall
from verifier_service.beams.beam_pace import BeamPace
from verifier_service.config import DraftingSettings
from verifier_service.drafts.client import LinkBroken
from verifier_service.drafts.pool import DrafterPool

_STEPS = 3
"""Number of steps to propose for a request that does not choose γ."""
_WIDER = 2
"""Proposed beams of a step for each beam of the search: u = 2w, so that a step is accepted where q ranks a little
differently than p."""

_log = structlog.get_logger()


class BeamDrafters:
    """Asks the drafters of a verifier for beams."""

    def __init__(self, pool: DrafterPool, settings: DraftingSettings, tokenizer_hash: str) -> None:
        self._pool = pool
        self._settings = settings
        self._tokenizer_hash = tokenizer_hash
        self._paces: dict[int, BeamPace] = {}
        """Times of the searches of each width."""

    def of(self, call: GenerationCall, gamma: int | None, vocab_size: int) -> "BeamDrafts":
        """Return the proposals for one search; γ None takes the default number of steps, where they pay."""
        width = 0 if call.beams is None else _WIDER * call.beams.width
        steps = min(_STEPS if gamma is None else gamma, MOST_NODES // max(width, 1))
        pace = self._paces.setdefault(width, BeamPace()) if gamma is None else None
        ask = self._ask(call, width, steps)
        return BeamDrafts(call, self._pool, self._settings, ask, vocab_size, pace)

    def _ask(self, call: GenerationCall, width: int, steps: int) -> Callable[[BeamSearch], BeamAsk]:
        def ask(search: BeamSearch) -> BeamAsk:
            left = min(steps, search.limit - search.length - 1)
            beams = tuple((beam.tokens, beam.score) for beam in search.running)
            return BeamAsk(
                self._tokenizer_hash, call.tokens, beams, width, left, tuple(sorted(search.ends)), call.cache_salt
            )

        return ask


class BeamDrafts:
    """Proposals for one search."""

    def __init__(  # noqa: PLR0913 - the parts of a search's proposals
        self,
        call: GenerationCall,
        pool: DrafterPool,
        settings: DraftingSettings,
        ask: Callable[[BeamSearch], BeamAsk],
        vocab_size: int,
        pace: BeamPace | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the proposals.

        Args:
            ask: returns the question for the next steps of a search.
            pace: chooses the passes with proposals; None asks for them in every pass.
        """
        self._call = call
        self._pool = pool
        self._settings = settings
        self._ask = ask
        self._vocab_size = vocab_size
        self._pace = pace
        self._clock = clock
        self._paused_until = 0.0

    def worth(self) -> bool:
        """Whether to ask for proposals for the next pass."""
        return self._pace is None or self._pace.drafts()

    def observe(self, drafted: bool, seconds: float, steps: int) -> None:
        """Record the duration of a pass, with the wait for its proposals, and the steps that it covered."""
        if self._pace is not None:
            self._pace.observe(drafted, seconds, steps)

    async def propose(self, search: BeamSearch) -> tuple[ProposedBeam, ...]:
        """Return proposed beams for the next steps; empty if there are none."""
        ask = self._ask(search)
        if ask.steps < 1 or self._clock() < self._paused_until:
            return ()
        link = self._pool.choose(self._call.session_id, (), self._call.speculation.drafter)
        if link is None or link.propose_beams is None:
            return ()
        try:
            async with asyncio.timeout(self._settings.timeout):
                return await link.propose_beams(ask, self._vocab_size)
        except (grpc.aio.AioRpcError, LinkBroken, TimeoutError, SpecdecError) as error:
            _log.info("no_beams_proposed", address=link.address, reason=str(error) or type(error).__name__)
            self._paused_until = self._clock() + self._settings.probe
            return ()
