"""Begins the beam searches of a process."""

from collections.abc import Callable
from concurrent.futures import Executor
from itertools import count as numbers

from specdec.beams.options import BeamOptions
from specdec.engine import NativeEngine
from specdec.errors import ContextLengthExceeded
from specdec.wire.generation import GenerationCall, Round
from verifier_service.beams.beam_drafts import BeamDrafters
from verifier_service.beams.beam_generation import BeamGeneration, RoundReader
from verifier_service.beams.beam_tally import BeamTally
from verifier_service.beams.target_beams import TargetBeams


class BeamSearches:
    """Makes a generation of each call with beams."""

    def __init__(
        self,
        engine: NativeEngine,
        thread: Executor,
        drafters: BeamDrafters,
        chunk_tokens: int,
        interrupt: Callable[[], None],
        tally: BeamTally,
    ) -> None:
        """Create the maker; arguments as for `BeamGeneration` and `TargetBeams`. `tally` limits those that wait."""
        self._engine = engine
        self._thread = thread
        self._drafters = drafters
        self._chunk_tokens = chunk_tokens
        self._interrupt = interrupt
        self._tally = tally
        self._numbers = numbers()

    def search(
        self,
        call: GenerationCall,
        options: BeamOptions,
        limit: int,
        gamma: int | None,
        count: Callable[[Round, int], None],
        reader: RoundReader,
    ) -> BeamGeneration:
        """Return the search of a call, which has not begun and counts as waiting for memory.

        Args:
            limit: largest length of the sequence, in tokens.
            gamma: number of steps to propose; None takes the default, and 0 proposes none.
            count: called with the round before the reader gets it.
            reader: receives the round.

        Raises:
            ContextLengthExceeded: the beams do not fit an empty engine.
            QueueFull: too many searches wait for memory already.
        """
        if not self._engine.holds(options.width, limit):
            message = f"{options.width} beams of {limit} tokens are more than this server has memory for"
            raise ContextLengthExceeded(message, "beam_width")
        name = f"search {next(self._numbers)}"
        target = TargetBeams(name, self._engine, call.tokens, limit, call.cache_salt, self._chunk_tokens)
        drafts = self._drafters.of(call, gamma, self._engine.vocab_size)
        place = self._tally.enter(options.width)
        return BeamGeneration(call, options, limit, target, drafts, self._thread, self._interrupt, place, count, reader)
