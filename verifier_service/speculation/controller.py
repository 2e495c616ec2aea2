"""Draft lengths of all sessions of a batch, planned once a pass."""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

from specdec.planning.allotment import NO_DRAFTS, Forecast, Judgement, RoundSeconds, allot, forecast
from specdec.planning.gamma_policy import AUTO, GammaPolicy
from specdec.planning.line import Line
from verifier_service.speculation.costs import BatchCosts, DraftedRounds, DrafterTimes, PassSample
from verifier_service.speculation.groups import Groups
from verifier_service.speculation.session_gamma import FleetAcceptance, SessionGamma, controller_of
from verifier_service.speculation.trials import BatchRound, Trials

_LEAST_SECONDS = 0.1
"""Least lifetime of a plan and of a report for the same batch, in seconds."""
_SHARE, _DRAFTING_SHARE = 0.001, 0.01
"""Share of time that planning may take, without and with drafting. Draft lengths follow the plan while drafting."""
_ACTIVE_PASSES = 4
"""Passes without a request after which a session no longer counts as active."""
_PUNCTUAL = 0.8
"""Share of the timeout within which drafts are expected to arrive. Longer drafts may be late and are not requested."""
_UNMEASURED = 4
"""Longest draft before the first measured pass, in tokens."""
_PATIENCE = 2.0
"""Least patience of a round, as a multiple of the expected wait. Otherwise late drafts would never be measured."""
_CLEARLY = 1.3
"""Predicted speed-up above which sessions draft while prompts are computed. No trial can check this prediction."""


class BatchSpeculation:
    """Chooses the draft lengths of a verifier's batches. All methods run on the event loop."""

    def __init__(  # noqa: PLR0913 - two clocks, and one argument for each setting
        self,
        gamma_max: int,
        draft_tokens: int,
        drafters: Callable[[], DrafterTimes],
        clock: Callable[[], float] = time.perf_counter,
        spent: Callable[[], float] = time.thread_time,
        groups: int | Literal["auto"] = 1,
        timeout: float = math.inf,
    ) -> None:
        """Create a controller without measurements.

        Args:
            gamma_max: most drafts of one session.
            draft_tokens: most drafts of one pass.
            drafters: returns the times that drafters report.
            clock: returns seconds, on the scale of `PassSample.started`.
            spent: returns the CPU seconds of the event loop's thread.
            groups: number of groups of the sessions that draft; `auto` chooses by measured times.
            timeout: longest wait for a draft, in seconds.
        """
        self.prompts = Line()
        """Prompt tokens and seconds of passes with prompts."""
        self.acceptance = FleetAcceptance()
        self.forecast = Forecast(1.0, 0.0, 0.0)
        """Expected effect of drafting on the current batch."""
        self._gamma_max = gamma_max
        self._budget = draft_tokens
        self._drafters = drafters
        self._clock = clock
        self._pace = PlanPace(clock, spent)
        self._timeout = timeout
        self._costs: dict[int, BatchCosts] = defaultdict(BatchCosts)
        """Costs by batch size level."""
        self._groups: dict[int, Groups] = defaultdict(lambda: Groups(groups))
        """Groups by batch size level."""
        self._trials: dict[tuple[int, frozenset[str | None]], Trials] = {}
        """Trials by batch size level and draft sources. Greedy and sampled drafts differ in acceptance."""
        self._sources: frozenset[str | None] = frozenset()
        """Draft sources of the active sessions."""
        self._active: dict[SessionGamma, int] = {}
        """Number of the pass for which each session last made a request."""
        self._pass, self._rows = 0, 1
        self._wanting = self._longest = self._plain = 0
        """Drafting sessions in the current round, their longest draft, and sessions that the plan gives no drafts."""
        self._ended, self._reported, self._reported_of, self._report = clock(), 0.0, (-1, False), Judgement()
        self._judged = -1
        """Number of the pass after which the last choice was made."""
        self._prompted = False
        """Whether the last pass had prompts. It did not wait for drafts, so the next pass has drafts of that round."""
        self._beside = 0.0
        """Seconds that prompts will add to the next pass, which starts without waiting for drafts."""
        self._unlike = 0
        """Coming passes that are not measured, because their drafts were chosen for a pass with prompts."""
        self._plan_for, self._allotment, self._planned = (0, False, 0.0), NO_DRAFTS, False
        """Key of the batch that the plan is for, the plan, and whether the plan uses measured passes."""
        self.drafting = False
        """Whether the sessions of the batch draft in the current round."""

    @property
    def trials(self) -> Trials:
        """Trials for the current batch size and draft sources. A single session may draft at once."""
        key = (self._level, self._sources)
        if key not in self._trials:
            self._trials[key] = Trials(eager=self._level == 0)
        return self._trials[key]

    @property
    def groups(self) -> int:
        """Number of groups that are drafted for and verified alternately; 1 if few sessions draft."""
        active = len(self._active)
        return self._groups[self._level].among(self._load, min(self._plain, active) if self.drafting else active)

    @property
    def costs(self) -> RoundSeconds:
        """Predicted costs of a round for the current batch size and draft plan."""
        groups = self._groups[self._level].among(self._load, min(self._plain, len(self._active)))
        return replace(self._nearest.of(self._load, self._drafters()), groups=groups)

    def report(self) -> Judgement:
        """Return the current estimates. They are renewed with the batch size, the choice to draft, and every 0.1 s."""
        now, of = self._clock(), (self._level, self.drafting)
        if of != self._reported_of or now - self._reported >= _LEAST_SECONDS:
            self._reported, self._reported_of, costs, load = now, of, self.costs, self._load
            plain = costs.base + costs.token * load
            predicted, measured = self.trials.expected(self.forecast.speedup), self.trials.measured
            token = costs.token + costs.beyond
            beta, c, r = (each / plain for each in (token * load, costs.draft, costs.wait))
            alpha, goodput = self.acceptance.overall.alpha, self._nearest.goodput or load / plain
            price = goodput * (token if self.drafting else self._nearest.guess_seconds(token))
            near = goodput * costs.token
            judged = Judgement(alpha, c, beta, goodput, price, near, r, plain, predicted, measured)
            grouping, overlap = self._groups[self._level].gain, self.acceptance.overlap
            self._report = replace(judged, groups=self.groups, grouping=grouping, overlap=overlap)
        return self._report

    @property
    def threshold_and_trial(self) -> tuple[float, bool]:
        """Least survival probability of a draft that pays, and whether a trial runs."""
        return self._allotment.threshold, self.trials.running

    def session(
        self, source: Callable[[], str | None], fixed: int | None = None, policy: GammaPolicy = AUTO
    ) -> SessionGamma:
        """Create the draft-length controller of a session.

        Args:
            source: returns the name of the session's draft source, or None while no source is available.
            fixed: fixed draft length; None to follow the policy.
            policy: policy of the session.
        """
        most = policy.most(self._gamma_max)
        own = controller_of(fixed, policy, most, self.report)
        session = SessionGamma(self, source, own, most)
        if own is None:
            self._active[session] = self._pass  # before its first request, so that plans count a whole burst
        return session

    def left(self, session: SessionGamma) -> None:
        """Remove an ended session from the batch."""
        self._active.pop(session, None)

    def passed(self, sample: PassSample) -> None:
        """Record a pass."""
        gap, costs = sample.started - self._ended, self._costs[self._level]
        # Count only rounds whose draft lengths were chosen here.
        asked = sample.follows and self._judged + self._prompted >= self._pass and not self._unlike
        guessing = asked and not self.drafting and sample.sessions <= len(self._active)
        if sample.prompt:
            self.prompts.observe(sample.computed, sample.seconds)
        else:
            self._rows = sample.sessions
            costs.observe(sample.computed, sample.seconds)
            costs.observe_round(sample, gap if sample.follows else 0.0, guessing=guessing)
        took = self._nearest.without_prompts(sample) if sample.prompt else sample.seconds
        self._beside = sample.seconds - took if sample.left and took is not None else 0.0
        if sample.prompt and 2 * sample.reading > self._load:
            took = None
        settled = 2 * sample.drafting >= self._wanting if self.drafting else sample.ahead
        # A round that gave up waiting shows only a lower bound of the wait.
        shows = settled or not self._longest or gap >= self.forecast.wait
        prompted = sample.prompt > 0 or self._prompted  # drafts arrive while prompts are computed
        late = self.drafting and 0 < self._wanting <= 2 * sample.prefilling
        if asked and shows and not prompted and not late and not (self.drafting and self.trials.settling):
            costs.observe_gap(self._longest, sample.waited if self._longest and sample.groups > 1 else gap)
        if asked and took is not None and self.drafting and not self.trials.running:
            self._groups[self._level].observe(sample, took, gap)
        if asked and took is not None and self._plan_for[0] == self._level:
            worth, predicted = sample.committed * self.forecast.plain, self.forecast.speedup
            guessed = guessing and self._planned and sample.drafting > 0
            self.trials.observe(BatchRound(worth, gap + took, self.drafting, settled, predicted, late, guessed))
        self._ended = sample.started + sample.seconds
        self._prompted, self._unlike = sample.prompt > 0, max(self._unlike - 1, 0)
        self._pass += 1

    def patience(self) -> float:
        """Return the seconds that the current round may still wait for its drafts."""
        return self._ended + max(self.forecast.patience, _PATIENCE * self.forecast.wait) - self._clock()

    def gamma(self, session: SessionGamma) -> int:
        """Return the draft length of a session's next round."""
        self._active[session] = self._pass
        if first := self._judged != self._pass:
            self._judged, self._wanting, self._longest = self._pass, 0, 0
        if first or self._plan_for[0] != self._level:
            self._judge()
        if not self.drafting:
            return 0
        demand = session.demand(session.source)
        gamma = self._allotment.gamma(demand)
        self._wanting += gamma > 0
        self._longest = max(self._longest, gamma)
        return gamma

    def rounds(self, source: str) -> DraftedRounds:
        """Return acceptance and plain round time for the drafts of a source."""
        return DraftedRounds(self.acceptance.alpha(source), self.report().plain_seconds if self._nearest.known else 0.0)

    def second_pays(self, source: str) -> bool:
        """Whether a second draft of a source for the first position brings more tokens than its time would."""
        return self.acceptance.second(source) > self.report().near_price

    def _judge(self) -> None:
        """Choose whether to draft. Renews the plan if the batch has changed or the plan has expired."""
        if self._beside:
            self._judge_beside_prompts()
            return
        if self._plan_for != (self._level, self.trials.exploring, 0.0) or self._pace.over:
            with self._pace.planning(drafting=self.drafting):
                self._plan(self.trials.exploring)
        self.drafting = self._allotment != NO_DRAFTS and self.trials.drafts(self.forecast.speedup)
        if self.trials.exploring is not self._plan_for[1]:
            self._plan(self.trials.exploring)

    def _judge_beside_prompts(self) -> None:
        """Choose whether to draft while prompts are computed.

        A session that drafts then joins only every second pass, so drafting must clearly beat a plain row in each pass.
        """
        if self._plan_for != (self._level, False, self._beside):
            self._plan(exploring=False, beside=self._beside)
        self.drafting = self.trials.expected(self.forecast.speedup) > _CLEARLY
        self._unlike = 2

    def _plan(self, exploring: bool, beside: float = 0.0) -> None:
        self._active = {each: last for each, last in self._active.items() if self._pass - last <= _ACTIVE_PASSES}
        sources = [session.source for session in self._active]
        self._sources = frozenset(sources)
        costs = replace(self.costs, base=self.costs.base + beside, groups=2) if beside else self.costs
        most = costs.drafts_within(_PUNCTUAL * self._timeout, self._gamma_max)
        most = most if self._nearest.known else min(most, _UNMEASURED)
        demands = [each.demand(source).up_to(most) for each, source in zip(self._active, sources, strict=True)]
        others = self._load - len(demands)
        self._allotment = allot(demands, others, costs, self._budget)
        gammas = [self._allotment.gamma(each) for each in demands]
        self.forecast, self._plain = forecast(gammas, demands, others, costs), gammas.count(0)
        self._plan_for, self._planned = (self._level, exploring, beside), self._nearest.known

    @property
    def _nearest(self) -> BatchCosts:
        """Costs of the level nearest to the batch's at which a pass without prompts is known."""
        known = [level for level, costs in self._costs.items() if costs.known] or [self._level]
        return self._costs[min(known, key=lambda level: abs(level - self._level))]

    @property
    def _load(self) -> int:
        return max(self._rows, len(self._active))

    @property
    def _level(self) -> int:
        """Batch size as the rounded base-2 logarithm, so that small changes of the load keep the level."""
        return round(math.log2(self._load))


class PlanPace:
    """Decides when a plan expires."""

    def __init__(self, clock: Callable[[], float], spent: Callable[[], float]) -> None:
        """Create a pace without a plan.

        Args:
            clock: returns seconds.
            spent: returns the CPU seconds of the planning thread.
        """
        self._clock = clock
        self._spent = spent
        self._until = -math.inf
        self._first = True
        """Whether nothing was planned. The first plan loads code, and is made without measurements."""

    @property
    def over(self) -> bool:
        """Whether the last plan has expired."""
        return self._clock() >= self._until

    @contextmanager
    def planning(self, *, drafting: bool) -> Iterator[None]:
        """Time the planning inside the context, and set the plan's lifetime from it."""
        began, before = self._clock(), self._spent()
        yield
        share = _DRAFTING_SHARE if drafting else _SHARE
        took = 0.0 if self._first else (self._spent() - before) / share
        self._until, self._first = began + max(_LEAST_SECONDS, took), False
