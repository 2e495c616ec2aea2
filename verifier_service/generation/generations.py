"""Takes jobs: checks them, gives each its session with everything it needs, and counts what comes out."""

import math
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from itertools import count

from verifier_service.batching.batch_plan import KvRequest, rank
from verifier_service.batching.costs import Costs
from verifier_service.config import VerifierSettings
from verifier_service.drafters.drafts import Drafts, NoDrafts
from verifier_service.drafters.pool import DrafterPool
from verifier_service.drafters.session_drafts import Price, RemoteDrafts
from verifier_service.generation.job import Job, Limits, check
from verifier_service.generation.rounds import Round
from verifier_service.generation.runs import Run, Runs
from verifier_service.generation.session import Session, Target
from verifier_service.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Parts:
    """What the sessions of a process share."""

    target: Target
    pool: DrafterPool
    costs: Costs
    metrics: Metrics


class Generations:
    """The one place where a job becomes a run."""

    def __init__(self, settings: VerifierSettings, limits: Limits, parts: Parts) -> None:
        self._settings = settings
        self._limits = limits
        self._parts = parts
        self._runs = Runs()
        self._numbers = count()

    def start(self, job: Job) -> Run:
        """Begin a generation.

        Raises:
            RequestError: the job breaks a limit.
            Fenced: its epoch is over.
        """
        check(job, self._limits)
        return self._runs.start(job.session_id, job.epoch, _Counted(self._session(job), self._parts))

    async def drain(self, limit: float) -> int:
        """Let what runs finish, but no longer than `limit` seconds; how many generations did not."""
        return await self._runs.drain(limit)

    def _session(self, job: Job) -> Session:
        parts, limit = self._parts, job.length_limit(self._limits.context_length)
        gamma = self._gamma(job)
        controller = parts.costs.controller(gamma)
        drafts = NoDrafts() if gamma == 0 else self._drafts(job, limit)
        name = f"{job.session_id}#{next(self._numbers)}"
        claim = KvRequest(name, limit, rank(job.priority, time.monotonic()), job.cache_salt)
        return Session(claim, job, self._settings.chunk_tokens, (parts.target, drafts, controller))

    def _drafts(self, job: Job, limit: int) -> Drafts:
        """A caller who fixes γ gets it, whatever it costs; for the others a late draft is not waited for in vain."""
        costs = self._parts.costs
        worth = costs.worth_waiting if job.speculation.gamma is None else lambda *_: math.inf
        return RemoteDrafts(job, limit, self._parts.pool, self._settings.drafting, Price(costs.drafts, worth))

    def _gamma(self, job: Job) -> int | None:
        """The γ the request or the settings fix; None when it follows the costs."""
        if not job.may_speculate:
            return 0
        if job.speculation.gamma is not None:
            return job.speculation.gamma
        default = self._settings.gamma
        return None if default == "auto" else min(default, self._limits.gamma_max)


class _Counted:
    """A session whose rounds are counted."""

    def __init__(self, session: Session, parts: Parts) -> None:
        self._session = session
        self._parts = parts

    async def run(self) -> AsyncGenerator[Round, None]:
        """The session's rounds."""
        async with aclosing(self._session.run()) as rounds:
            async for done in rounds:
                self._count(done)
                yield done

    def _count(self, done: Round) -> None:
        costs, metrics = self._parts.costs, self._parts.metrics
        metrics.count(done)
        costs.accepted(len(done.draft), done.accepted)
        metrics.alpha.set(costs.alpha)
        metrics.c.set(costs.c())
        metrics.plain_seconds.set(costs.passes.step() or 0.0)
        metrics.beta.set(costs.beta())
