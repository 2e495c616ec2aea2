"""Draft sources on replayed texts: the target computes every pass but outputs the tokens of a given text.

The time of a round is real, and the acceptance of a draft depends on the text alone.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.texts import Replayed
from specdec.engine import Chunk, NativeEngine
from specdec.errors import InternalError
from specdec.rules.draft import Verdict
from specdec.rules.speculation import Mode, Speculation
from specdec.sampling.params import SamplingParams
from specdec.wire.generation import GenerationCall
from verifier_service.backends.batch_plan import Row, ScheduledChunk
from verifier_service.backends.target_pass import verify_batch
from verifier_service.config import VerifierSettings
from verifier_service.drafts.drafts import Drafts
from verifier_service.drafts.pool import DrafterPool
from verifier_service.drafts.sources import DraftSources
from verifier_service.speculation.controller import BatchSpeculation
from verifier_service.speculation.costs import DrafterTimes, PassSample

_NAME = "bench"
_CERTAIN = 50.0
"""Logit of the replayed token. All other logits are 0."""


class ReplayEngine:
    """An engine that computes each pass and answers with the tokens of a text."""

    def __init__(self, engine: NativeEngine) -> None:
        self._engine = engine
        self.text: Sequence[int] = ()

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        starts = [self._engine.length(chunk.session) for chunk in chunks]
        logits = self._engine.forward(chunks)
        last = len(self.text) - 1
        following = [
            self.text[min(start + len(chunk.tokens) - back, last)]
            for start, chunk in zip(starts, chunks, strict=True)
            for back in reversed(range(chunk.logits))
        ]
        logits.zero_()[torch.arange(len(following)), torch.tensor(following, dtype=torch.long)] = _CERTAIN
        return logits

    def truncate(self, session: str, length: int) -> None:
        self._engine.truncate(session, length)


@dataclass(slots=True)
class Tally:
    """Sums over turns."""

    tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    rejected: int = 0
    seconds: float = 0.0
    """CPU seconds after the prompt's pass, plus the time in which a source reads the prompt."""

    @property
    def alpha(self) -> float:
        return self.accepted / max(1, self.accepted + self.rejected)


class Replayer:
    """One source, or none, over all turns of a workload. Its store persists between turns."""

    def __init__(self, engine: NativeEngine, source: str) -> None:
        """Set the name of the source, or "" for plain decoding."""
        self._engine = engine
        self._replay = ReplayEngine(engine)
        self._source = source
        settings = VerifierSettings.load(None, {"model": {"path": "unused"}})
        self._speculation = BatchSpeculation(settings.gamma_max, settings.draft_tokens, lambda: DrafterTimes(None))
        self._sources = DraftSources(settings, DrafterPool(), self._speculation, engine.vocab_size)
        self.tally = Tally()

    def run(self, turn: Replayed) -> None:
        """Replay one turn."""
        limit = len(turn.prompt) + len(turn.output)
        if not (self._engine.admit(_NAME, limit) and self._engine.reserve(_NAME, limit)):
            raise InternalError(f"no room for {limit} tokens")
        self._replay.text = turn.prompt + turn.output
        try:
            asyncio.run(self._generate(turn, limit))
        finally:
            self._engine.release(_NAME)

    async def _generate(self, turn: Replayed, limit: int) -> None:
        prediction = turn.prompt if self._source == "prediction" else ()
        call = GenerationCall(
            session_id=_NAME,
            tokens=turn.prompt,
            prompt_len=len(turn.prompt),
            sampling=SamplingParams(temperature=0.0),
            max_tokens=len(turn.output),
            stop_token_ids=(),
            speculation=Speculation(Mode.COUPLED, drafter=self._source, prediction=prediction),
        )
        before = len(turn.prompt) - 1
        self._engine.forward([Chunk(_NAME, turn.prompt[:before], logits=0)])
        started = time.process_time()
        drafts = self._sources.drafts(call, limit, None) if self._source else Drafts()
        drafts.begin(0)
        tokens = list(turn.prompt)
        while len(tokens) < limit:
            await asyncio.sleep(0)  # a source reads a long prompt between rounds
            verdict = self._round(call, limit, tokens, drafts)
            tokens += verdict.tokens
            drafts.commit(verdict.tokens, verdict.drafted, 0)
            self._count(verdict)
        drafts.close()
        self.tally.seconds += time.process_time() - started
        if tuple(tokens[:limit]) != turn.prompt + turn.output:
            raise InternalError("the replay went astray")

    def _round(self, call: GenerationCall, limit: int, tokens: list[int], drafts: Drafts) -> Verdict:
        proposal = drafts.guess()
        row = Row(call, _NAME, rank=0.0, limit=limit, tokens=tokens, goal=len(tokens), draft=proposal.draft)
        started = time.process_time()
        (verdict,) = verify_batch(self._replay, [ScheduledChunk(row, len(tokens) - 1, 1)])  # type: ignore[arg-type]
        seconds, drafted = time.process_time() - started, len(proposal.draft.tokens)
        if not isinstance(verdict, Verdict):
            raise InternalError("the pass failed")
        sample = PassSample(1, 1, drafted + 1, len(verdict.tokens), int(drafted > 0), started, seconds, follows=False)
        self._speculation.passed(sample)
        return verdict

    def _count(self, verdict: Verdict) -> None:
        tally = self.tally
        tally.rounds += 1
        tally.tokens += len(verdict.tokens)
        tally.drafted += verdict.drafted
        tally.accepted += verdict.accepted
        tally.rejected += verdict.accepted < verdict.drafted
