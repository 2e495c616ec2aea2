"""Our engine with a drafter in the same thread, which drafts for a batch and then judges it.

There are no services, sockets, queues or gateway, so that only the turns cost time.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context

import torch

from benchmarks.clients import Clients, count_clients
from benchmarks.drafters import load_drafter
from benchmarks.local import Drafting, draft_together, load, target_row
from benchmarks.pair import Pair
from benchmarks.run import Ask, pace
from benchmarks.systems.apart import StepTime
from benchmarks.systems.slowed import slowed
from drafter_service.sessions.drafter import Drafter
from specdec.engine import NativeEngine
from specdec.errors import InternalError
from specdec.rules.draft import Verdict
from verifier_service.backends.batch_plan import ScheduledChunk
from verifier_service.backends.model_step import Rotation
from verifier_service.backends.target_pass import verify_batch


@dataclass(slots=True, eq=False)
class Generation:
    """One of the generations that share passes."""

    name: str
    ask: Ask
    drafting: Drafting
    tokens: list[int]
    computed: int = 0
    """Tokens that have KV at the target."""
    times: list[float] = field(default_factory=list)
    """End times of the rounds, in seconds."""
    counts: list[int] = field(default_factory=list)
    """Tokens of each round."""

    @property
    def running(self) -> bool:
        """Whether tokens are missing."""
        return len(self.tokens) < len(self.ask.prompt) + self.ask.tokens


class InTurns:
    """Drafts γ tokens for the generations of the next pass, runs the pass, and repeats."""

    def __init__(self, target: NativeEngine, drafter: Drafter, gamma: int, most: int) -> None:
        """Set up a loop in which `most` generations share a pass and its drafts, by `Rotation` as in a verifier."""
        self._target = target
        self._drafter = drafter
        self._gamma = gamma
        self._most = most

    def run(self, asks: Sequence[Ask]) -> list[Generation]:
        """Run all generations at once.

        Raises:
            InternalError: there is no memory for them.
        """
        generations = [self._admitted(f"turns-{number}", ask) for number, ask in enumerate(asks)]
        try:
            rotation = Rotation(self._most)
            while running := [each for each in generations if each.running]:
                batch = sorted(running, key=lambda each: rotation.place(each.name))[: self._most]
                rotation.took_part(each.name for each in batch)
                self._round(batch)
        finally:
            for each in generations:
                self._target.release(each.name)
                self._drafter.sequences.release(each.name)
        return generations

    def _admitted(self, name: str, ask: Ask) -> Generation:
        limit = len(ask.prompt) + ask.tokens
        for memory in (self._target, self._drafter.sequences):
            if not (memory.admit(name, limit) and memory.reserve(name, limit)):
                raise InternalError(f"no room for {limit} tokens of {name}")
        return Generation(name, ask, Drafting(self._drafter, ask, self._gamma, name), list(ask.prompt))

    def _round(self, batch: Sequence[Generation]) -> None:
        drafts = draft_together(self._drafter, [each.drafting for each in batch])
        rows = [
            target_row(each.name, each.ask, tuple(each.tokens), draft)
            for each, draft in zip(batch, drafts, strict=True)
        ]
        chunks = [
            ScheduledChunk(row, each.computed, len(each.tokens) - each.computed)
            for each, row in zip(batch, rows, strict=True)
        ]
        for each, verdict in zip(batch, verify_batch(self._target, chunks), strict=True):
            if not isinstance(verdict, Verdict):
                raise InternalError("the pass failed")
            base_len = len(each.tokens)
            each.computed = base_len + verdict.accepted
            each.tokens += verdict.tokens
            each.drafting.commit(base_len, verdict.tokens)
            each.times.append(time.perf_counter())
            each.counts.append(len(verdict.tokens))


@dataclass(frozen=True, slots=True)
class Place:
    """Target and drafter that alternate in their own process."""

    pair: Pair
    steps: tuple[float, float]
    """Seconds of a pass of the target, and of a step of the drafter."""
    gamma: int
    most: int
    """Generations of a pass."""

    def clients(self, ask: Ask, share: float, bounds: tuple[int, int]) -> Clients:
        """Return how many clients with that ask have a share of the speed of a single client. See `count_clients`."""
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            return process.submit(_clients, self, ask, share, bounds).result()


def _clients(place: Place, ask: Ask, share: float, bounds: tuple[int, int]) -> Clients:
    torch.set_num_threads(1)
    target, drafter = load(place.pair.target), load_drafter("model", place.pair.drafter)
    turns = InTurns(target, drafter, place.gamma, place.most)

    def slowest(count: int) -> float:
        return min(pace(each.times, each.counts) for each in turns.run([ask] * count))

    with slowed(lambda engine: StepTime(place.steps[0] if engine is target else place.steps[1])):
        return count_clients(slowest, share * slowest(1), bounds)
