"""How much each session of the batch drafts: one judgement for all of them, made once a pass."""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

from specdec.planning.allotment import NO_DRAFTS, Forecast, Judgement, RoundSeconds, allot, forecast
from specdec.planning.gamma_policy import AUTO, GammaPolicy
from verifier_service.speculation.costs import BatchCosts, DraftedRounds, DrafterTimes, PromptRate, SizedCosts
from verifier_service.speculation.fleet_acceptance import FleetAcceptance
from verifier_service.speculation.groups import Groups
from verifier_service.speculation.pass_sample import PassSample
from verifier_service.speculation.round_tally import BatchRound
from verifier_service.speculation.session_gamma import SessionGamma, controller_of
from verifier_service.speculation.trials import Trials

_LEAST_SECONDS = 0.1
"""How long a plan of the same batch holds at least."""
_SHARE, _DRAFTING_SHARE = 0.001, 0.01
"""Share of the time that planning may take: while nothing is drafted, and while drafts are, whose lengths follow it."""
_ACTIVE_PASSES = 4
"""Passes after which a session that asked for nothing does not count any more."""
_OPTIMISTIC = 0.5
"""Least α that a trial of drafting assumes, so that drafts that have become better are found out."""
_PUNCTUAL = 0.8
"""Share of the longest wait within which a draft is expected; what takes longer may be late and is not ordered."""
_UNMEASURED = 4
"""Longest draft, in tokens, before a pass has been measured."""
_REPORT_SECONDS = 1.0
"""Least time between two reports of batches alike."""
_PATIENCE = 2.0
"""Times the expected wait that a round waits at least, for what comes later would otherwise never be measured."""
_CLEARLY = 1.3
"""Speed-up above which sessions draft beside prompts: such passes differ, so no trial checks what is predicted."""


class BatchSpeculation:
    """The judgement of a verifier's batches; all on the event loop."""

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
        """Begin with nothing measured.

        Args:
            gamma_max: most drafts of one session.
            draft_tokens: most drafts of one pass.
            drafters: reads what drafters report of their speed.
            clock: gives seconds, on the scale of `PassSample.started`.
            spent: seconds that the thread of the event loop has computed; it often waits for other threads meanwhile.
            groups: in how many the sessions that draft are, by measured times where it is `auto`.
            timeout: longest wait for a draft, in seconds.
        """
        self.prompts = PromptRate()
        self.acceptance = FleetAcceptance()
        self.forecast = Forecast(1.0, 0.0, 0.0)
        """What the drafts of the present batch are expected to bring."""
        self._gamma_max = gamma_max
        self._budget = draft_tokens
        self._drafters = drafters
        self._clock = clock
        self._pace = PlanPace(clock, spent)
        self._timeout = timeout
        self._costs = SizedCosts()
        self._groups: dict[int, Groups] = defaultdict(lambda: Groups(groups))
        """By batch size."""
        self._trials: dict[tuple[int, frozenset[str | None]], Trials] = {}
        """By batch size and by what drafts: greedy drafts that pay say nothing of sampled ones."""
        self._sources: frozenset[str | None] = frozenset()
        """What drafts for the sessions of the batch."""
        self._active: dict[SessionGamma, int] = {}
        """In which pass each session asked last."""
        self._pass, self._rows = 0, 1
        self._wanting = self._longest = self._plain = 0
        """Sessions that draft in the round under way, most drafts of one, and sessions to which the plan gives none."""
        self._ended, self._reported, self._reported_of, self._report = clock(), 0.0, (-1, False), Judgement()
        self._judged = -1
        """The pass that the judgement was made behind."""
        self._prompted = False
        """Whether the last pass had prompts: these wait for no drafts, so the next has drafts of the same round."""
        self._beside = 0.0
        """Seconds that prompts are known to add to the next pass, which begins at once and waits for no drafts."""
        self._unlike = 0
        """Passes to come that are unlike others, because of what was judged beside prompts."""
        self._plan_for, self._allotment, self._planned = (0, False, 0.0), NO_DRAFTS, False
        """The batch that the plan is for, the plan, and whether it rests on passes that were measured."""
        self.drafting = False
        """Whether the sessions of the batch draft in the round under way."""

    @property
    def trials(self) -> Trials:
        """Trials recorded for the current batch size and draft sources; a session that is alone drafts at once."""
        key = (self._level, self._sources)
        if key not in self._trials:
            self._trials[key] = Trials(eager=self._level == 0)
        return self._trials[key]

    @property
    def groups(self) -> int:
        """In how many groups, drafted for and verified in turns, the sessions of the batch are; one if few draft."""
        active = len(self._active)
        return self._groups[self._level].among(self._load, min(self._plain, active) if self.drafting else active)

    @property
    def costs(self) -> RoundSeconds:
        """What a round of a batch of the present size takes, where sessions draft as they are planned to."""
        groups = self._groups[self._level].among(self._load, min(self._plain, len(self._active)))
        return replace(self._nearest.of(self._load, self._drafters()), groups=groups)

    def report(self) -> Judgement:
        """What is believed now; made anew every second, and when the batch has another size or begins to draft."""
        now, of = self._clock(), (self._level, self.drafting)
        if of != self._reported_of or now - self._reported >= _REPORT_SECONDS:
            self._reported, self._reported_of, costs, load = now, of, self.costs, self._load
            plain = costs.base + costs.token * load
            predicted, measured = self.trials.expected(self.forecast.speedup), self.trials.measured
            beta, c, r = (each / plain for each in (costs.token * load, costs.draft, costs.wait))
            alpha, goodput = self.acceptance.overall.alpha, self._nearest.goodput or load / plain
            price = goodput * (costs.token if self.drafting else self._nearest.guess_seconds(costs.token))
            judged = Judgement(alpha, c, beta, goodput, price, r, plain, predicted, measured)
            self._report = replace(judged, groups=self.groups, grouping=self._groups[self._level].gain)
        return self._report

    @property
    def grounds(self) -> tuple[float, bool]:
        """The least survival of a draft that is worth its time, and whether the way taken is on trial."""
        return self._allotment.threshold, self.trials.running

    def session(
        self, source: Callable[[], str | None], fixed: int | None = None, policy: GammaPolicy = AUTO
    ) -> SessionGamma:
        """The draft length of a session: `fixed`, or by its policy.

        Args:
            source: names what the session's drafts come from, None while there is nothing that drafts.
        """
        most = policy.most(self._gamma_max)
        own = controller_of(fixed, policy, most, self.report)
        session = SessionGamma(self, source, own, most)
        if own is None:
            self._active[session] = self._pass  # before it asks, so that a burst is judged at the size it will have
        return session

    def left(self, session: SessionGamma) -> None:
        """Forget a session that has ended: the batch has the size of those that go on."""
        self._active.pop(session, None)

    def passed(self, sample: PassSample) -> None:
        """Learn from a pass."""
        gap, costs = sample.started - self._ended, self._costs[self._level]
        # Sessions whose drafts are not chosen here tell nothing.
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
        # A round that gave its drafts up shows no more than that they take longer.
        shows = settled or not self._longest or gap >= self.forecast.wait
        prompted = sample.prompt > 0 or self._prompted  # drafts come while prompts are computed
        if asked and shows and not prompted and not (self.drafting and self.trials.settling):
            costs.observe_gap(self._longest, sample.waited if self._longest and sample.groups > 1 else gap)
        if asked and took is not None and self.drafting and not self.trials.running:
            self._groups[self._level].observe(sample, took, gap)
        if asked and took is not None and self._plan_for[0] == self._level:
            late = self.drafting and 0 < self._wanting <= 2 * sample.catching_up
            worth, predicted = sample.committed * self.forecast.plain, self.forecast.speedup
            guessed = guessing and self._planned and sample.drafting > 0
            self.trials.observe(BatchRound(worth, gap + took, self.drafting, settled, predicted, late, guessed))
        self._ended = sample.started + sample.seconds
        self._prompted, self._unlike = sample.prompt > 0, max(self._unlike - 1, 0)
        self._pass += 1

    def patience(self) -> float:
        """Seconds that the round under way may still wait for its drafts."""
        return self._ended + max(self.forecast.patience, _PATIENCE * self.forecast.wait) - self._clock()

    def gamma(self, session: SessionGamma) -> int:
        """The drafts of a session's next round."""
        self._active[session] = self._pass
        if first := self._judged != self._pass:
            self._judged, self._wanting, self._longest = self._pass, 0, 0
        if first or self._plan_for[0] != self._level:
            self._judge()
        if not self.drafting:
            return 0
        demand = session.demand(session.source)
        gamma = self._allotment.gamma(demand.at_least(_OPTIMISTIC) if self.trials.exploring else demand)
        self._wanting += gamma > 0
        self._longest = max(self._longest, gamma)
        return gamma

    def rounds(self, source: str) -> DraftedRounds:
        """What rounds with the drafts of a source are like."""
        return DraftedRounds(self.acceptance.alpha(source), self.report().plain_seconds if self._nearest.known else 0.0)

    def _judge(self) -> None:
        """Plan, where the batch has changed or the plan is old, and choose whether to draft."""
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
        """Draft where a session makes more of every second pass, behind a draft, than of every pass without one."""
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
        assumed = [demand.at_least(_OPTIMISTIC) for demand in demands] if exploring else demands
        self._allotment = allot(assumed, others, costs, self._budget)
        gammas = [self._allotment.gamma(each) for each in assumed]
        self.forecast, self._plain = forecast(gammas, demands, others, costs), gammas.count(0)
        self._plan_for, self._planned = (self._level, exploring, beside), self._nearest.known

    @property
    def _nearest(self) -> BatchCosts:
        return self._costs.nearest(self._level)

    @property
    def _load(self) -> int:
        return max(self._rows, len(self._active))

    @property
    def _level(self) -> int:
        """The batch size, as the nearest power of two: clients that come and go around 16 make one level."""
        return round(math.log2(self._load))


class PlanPace:
    """Says when a plan is old."""

    def __init__(self, clock: Callable[[], float], spent: Callable[[], float]) -> None:
        """Begin without a plan.

        Args:
            clock: gives seconds.
            spent: seconds that the thread which plans has computed; it often waits for other threads meanwhile.
        """
        self._clock = clock
        self._spent = spent
        self._until = float("-inf")

    @property
    def over(self) -> bool:
        """Whether the last plan has held long enough."""
        return self._clock() >= self._until

    @contextmanager
    def planning(self, *, drafting: bool) -> Iterator[None]:
        """Make a plan, which holds by the time that this takes and by whether the batch drafts."""
        began, before = self._clock(), self._spent()
        yield
        share = _DRAFTING_SHARE if drafting else _SHARE
        self._until = began + max(_LEAST_SECONDS, (self._spent() - before) / share)
