"""In simulated time, the controller never loses to plain decoding and comes near the best fixed draft length."""

import random
from statistics import mean
from unittest.mock import Mock

import pytest

from specdec.planning.allotment import Judgement, RoundSeconds
from specdec.planning.gamma import OptimalGamma
from specdec.planning.gamma_policy import GammaPolicy, PolicyKind
from specdec.wire.generation import Speedup
from tests.unit.verifier_service.speculation.simulated_batch import LONG, WARM, SimulatedBatch, costs, plain_rate
from verifier_service.speculation.controller import BatchSpeculation
from verifier_service.speculation.costs import DrafterTimes, PassSample
from verifier_service.speculation.session_gamma import FleetAcceptance, SessionGamma


@pytest.mark.parametrize("alpha", [0.02, 0.5, 0.9])
@pytest.mark.parametrize(("c", "wait"), [(0.03, 0.05), (0.3, 0.5), (3.0, 10.0)])
@pytest.mark.parametrize(("sessions", "beta"), [(1, 0.05), (8, 0.6)])
def test_it_never_loses_to_plain_decoding(alpha: float, c: float, wait: float, sessions: int, beta: float) -> None:
    batch = SimulatedBatch([alpha] * sessions, costs(sessions, c, beta, wait), noise=0.1)
    batch.run(WARM)
    assert batch.run(LONG) >= 0.975 * plain_rate(batch)


@pytest.mark.parametrize("alpha", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("c", [0.03, 0.3])
@pytest.mark.parametrize(("sessions", "beta", "share"), [(1, 0.05, 0.91), (8, 0.6, 0.94)])
def test_it_comes_near_the_best_fixed_draft_length(
    alpha: float, c: float, sessions: int, beta: float, share: float
) -> None:
    def fresh() -> SimulatedBatch:
        return SimulatedBatch([alpha] * sessions, costs(sessions, c, beta, 0.1), told=DrafterTimes(0.010 * c))

    best = max(fresh().run(500, fixed=gamma) for gamma in (0, 1, 2, 4, 8, 16))
    batch = fresh()
    batch.run(WARM)
    assert batch.run(LONG) >= share * best


@pytest.mark.parametrize(("alpha", "sessions", "c", "beta"), [(0.85, 2, 0.2, 0.2), (0.85, 1, 0.25, 0.2)])
def test_weak_drafts_are_not_given_up_for_noise_in_passes_and_acceptance(
    alpha: float, sessions: int, c: float, beta: float
) -> None:
    """The gain is at most a fifth, pass durations vary by a third, and nothing is known at first."""

    def fresh(seed: int) -> SimulatedBatch:
        truth, told = costs(sessions, c, beta, 0.4), DrafterTimes(0.010 * c)
        return SimulatedBatch([alpha] * sessions, truth, told=told, noise=0.3, dice=random.Random(seed))

    best = max(fresh(0).run(1500, fixed=gamma) for gamma in (0, 1, 3, 5, 8))
    assert best > 1.1 * plain_rate(fresh(0))
    assert mean(fresh(seed).run(1200) for seed in range(8)) >= 0.93 * best


def test_in_a_mixed_batch_the_sessions_whose_drafts_are_good_draft() -> None:
    batch = SimulatedBatch([0.9] * 4 + [0.05] * 4, costs(8, 0.05, 0.5, 0.1))
    batch.run(WARM)
    assert batch.run(LONG) > 1.1 * plain_rate(batch)
    good = bad = 0
    for _ in range(200):
        batch.run(1)
        good += sum(batch.gammas[:4])
        bad += sum(batch.gammas[4:])
    assert bad < 0.1 * good


def test_what_a_drafter_says_of_itself_is_not_believed_for_long() -> None:
    batch = SimulatedBatch([0.3] * 4, costs(4, 1.0, 0.3, 2.0), told=DrafterTimes(1e-6))
    batch.run(WARM)
    assert batch.run(LONG) >= 0.98 * plain_rate(batch)


def test_a_prediction_that_is_wrong_is_corrected_by_what_is_measured() -> None:
    """The source is always right but rarely drafts, so acceptance alone predicts too much."""
    batch = SimulatedBatch([0.95] * 4, costs(4, 0.3, 0.4, 0.8), silent=0.9)
    batch.run(WARM)
    assert batch.run(LONG) >= 0.975 * plain_rate(batch)
    assert batch.speculation.trials.correction < 0.8


def test_the_prompts_of_a_burst_are_not_taken_for_slow_plain_rounds() -> None:
    batch = SimulatedBatch([0.7] * 8, costs(8, 0.1, 0.6, 0.3))
    assert batch.run(100, fixed=1) < plain_rate(batch)
    batch = SimulatedBatch([0.7] * 8, costs(8, 0.1, 0.6, 0.3))
    for rows in (2, 4, 6, 8):
        batch.burst(rows, prompt=500)
    batch.run(30)
    assert batch.gammas == [0] * 8


def test_exploring_costs_one_token_in_a_hundred() -> None:
    batch = SimulatedBatch([0.05] * 4, costs(4, 0.5, 0.4, 1.0))
    batch.run(WARM)
    before, drafted = batch.tokens, batch.drafted_tokens
    batch.run(8000)
    assert 0 < batch.drafted_tokens - drafted <= 0.011 * (batch.tokens - before)


def test_drafts_that_have_become_better_are_found_out() -> None:
    batch = SimulatedBatch([0.02] * 4, costs(4, 0.03, 0.2, 0.1))
    batch.run(2000)
    assert batch.gammas == [0] * 4
    batch.alphas = [0.9] * 4
    batch.run(6000)
    assert batch.run(1000) > 1.5 * plain_rate(batch)


def test_without_a_drafter_nobody_drafts_and_with_one_again_they_do() -> None:
    batch = SimulatedBatch([0.9] * 2, costs(2, 0.05, 0.1, 0.1), source=None)
    batch.run(100)
    assert batch.drafted_tokens == 0
    batch.source = "model"
    batch.run(50)
    assert max(batch.gammas) > 0


def test_a_new_session_begins_with_what_its_source_has_shown() -> None:
    batch = SimulatedBatch([0.95], costs(1, 0.05, 0.1, 0.1))
    batch.run(300)
    known = batch.speculation.session(lambda: "model").demand("model")
    other = batch.speculation.session(lambda: "lookup").demand("lookup")
    assert known.alpha == pytest.approx(0.95, abs=0.05)
    assert other.alpha == pytest.approx(0.7)


def test_a_fixed_draft_length_stays_and_teaches() -> None:
    batch = SimulatedBatch([0.9], costs(1, 0.05, 0.1, 0.1))
    fixed = batch.speculation.session(lambda: "model", 3)
    for _ in range(200):
        fixed.observe(4, 0)
    assert fixed.gamma() == 3
    assert batch.speculation.acceptance.alpha("model") < 0.1


def test_a_session_says_why_it_drafts_so_much() -> None:
    batch = SimulatedBatch([0.9], costs(1, 0.05, 0.1, 0.1))
    batch.run(300)
    assert batch.speculation.session(lambda: "model", 3).detail(3, 9).reason == "fixed"
    entropic = batch.speculation.session(lambda: "model", 8, GammaPolicy(PolicyKind.EGAG)).detail(8, 9)
    assert (entropic.gamma, entropic.reason) == (8, "egag")
    assert batch.speculation.session(lambda: "model", 0, GammaPolicy(PolicyKind.EGAG)).detail(0, 9).reason == "fixed"
    chosen = batch.speculation.session(lambda: "model").detail(4, 9)
    assert chosen.reason in ("goodput", "trial")
    assert (chosen.gamma, chosen.alpha) == (4, pytest.approx(0.9, abs=0.05))
    assert 0.0 < chosen.survival < 1.0
    last = batch.speculation.session(lambda: "model").detail(4, 2)
    assert (last.gamma, last.reason) == (2, "room")


def test_the_report_says_what_was_predicted_and_what_was_measured() -> None:
    batch = SimulatedBatch([0.8] * 2, costs(2, 0.05, 0.1, 0.1))
    assert batch.speculation.report().measured is None
    batch.run(2000)
    report = batch.speculation.report()
    assert report.measured is not None
    assert report.measured == pytest.approx(report.predicted, rel=0.15)
    assert report.plain_seconds == pytest.approx(0.010, rel=0.1)
    assert report.alpha == pytest.approx(0.8, abs=0.05)


def test_a_report_is_of_the_batch_as_it_is() -> None:
    batch = SimulatedBatch([0.9], costs(1, 0.05, 0.4, 0.1), source=None)
    batch.run(300)
    assert batch.speculation.report().plain_seconds == pytest.approx(0.010)
    for _ in range(3):  # each adds 0.02 of a pass while no other size has been measured
        batch.speculation.session(lambda: None)
    assert batch.speculation.report().plain_seconds == pytest.approx(0.0106)


def test_the_price_of_a_token_is_what_is_committed_in_its_time() -> None:
    batch = SimulatedBatch([0.9] * 4, costs(4, 0.05, 0.4, 0.1))
    batch.run(500, fixed=0)
    report = batch.speculation.report()
    assert report.goodput == pytest.approx(400.0, rel=0.05)
    assert report.price == pytest.approx(report.beta, rel=0.05)
    drafted = batch.run(500, fixed=4)
    report = batch.speculation.report()
    assert report.goodput == pytest.approx(drafted, rel=0.05)
    assert report.price == pytest.approx(0.001 * drafted, rel=0.1)


def test_what_greedy_drafts_bring_says_nothing_of_sampled_ones() -> None:
    batch = SimulatedBatch([0.95] * 4, costs(4, 0.05, 0.2, 0.1), source="model, greedy")
    batch.run(600)
    assert max(batch.gammas) > 0
    batch.source, batch.alphas = "model", [0.05] * 4
    batch.run(100)
    assert batch.run(200) >= 0.97 * plain_rate(batch)
    batch.source, batch.alphas = "model, greedy", [0.95] * 4
    batch.run(20)
    assert max(batch.gammas) > 0


def test_batches_around_a_power_of_two_share_what_was_learned() -> None:
    batch = SimulatedBatch([0.5] * 16, costs(1, 0.05, 0.05, 0.1))
    batch.run(10)
    learned = batch.speculation.trials
    more = [batch.speculation.session(lambda: "model") for _ in range(4)]
    assert batch.speculation.trials is learned
    more += [batch.speculation.session(lambda: "model") for _ in range(4)]
    assert batch.speculation.trials is not learned


@pytest.mark.parametrize(("alpha", "fixed"), [(0.9, 0), (0.02, 12)], ids=["none, behind drafts", "drafts, behind none"])
def test_rounds_whose_drafts_others_chose_do_not_change_what_waiting_costs(alpha: float, fixed: int) -> None:
    batch = SimulatedBatch([alpha] * 4, costs(4, 0.05, 0.2, 0.5))
    batch.run(WARM)
    assert (max(batch.gammas) > 0) is (fixed == 0)
    before = batch.speculation.costs
    batch.run(WARM, fixed=fixed)
    after = batch.speculation.costs
    assert (after.base, after.wait, after.draft) == pytest.approx((before.base, before.wait, before.draft), rel=0.05)


def test_a_burst_is_judged_at_the_size_it_has() -> None:
    batch = SimulatedBatch([0.5], costs(1, 0.05, 0.05, 0.1))
    batch.run(100)
    assert batch.gammas != [0]
    more = [batch.speculation.session(lambda: "model") for _ in range(16)]
    assert [session.gamma() for session in more] == [0] * 16


def test_rounds_without_a_wait_do_not_show_how_long_drafts_take() -> None:
    """The drafter never answers, and its sessions do not wait for it."""
    batch = SimulatedBatch([0.7], RoundSeconds(0.009, 0.001, 0.0, 0.0), told=DrafterTimes(0.05), silent=1.0)
    batch.run(WARM)
    assert batch.drafted_tokens > 0
    assert batch.speculation.costs.draft == pytest.approx(0.05)


@pytest.mark.parametrize("token", [0.0, 0.02])
def test_prompts_that_leave_out_drafting_sessions_are_a_cost_of_drafts(token: float) -> None:
    """This holds even if prompts take most of such a pass and no session shares it."""
    costs = RoundSeconds(1.0, token, 0.0, 0.02)
    batch = SimulatedBatch([0.4] * 4, costs, prompts=64)
    batch.run(2 * WARM)
    off = SimulatedBatch([0.4] * 4, costs, prompts=64).run(LONG, fixed=0)
    assert batch.run(LONG) > 0.97 * off
    assert (batch.speculation.report().measured or 0.0) < 1.0  # passes without prompts gain 1.6


def test_no_draft_is_longer_than_rounds_may_wait_for() -> None:
    """The best draft has 11 tokens, which take 43 ms."""
    batch = SimulatedBatch([0.95], costs(1, 0.3, 0.05, 1.0), told=DrafterTimes(0.003), timeout=0.030)
    batch.run(WARM)
    assert batch.run(LONG) > 1.2 * plain_rate(batch)


def test_a_session_that_has_ended_does_not_count() -> None:
    speculation = BatchSpeculation(4, 64, lambda: DrafterTimes(None))
    speculation.session(lambda: "model")
    alone = speculation.trials
    others = [speculation.session(lambda: "model") for _ in range(3)]
    assert speculation.trials is not alone
    for session in others:
        session.close()
    assert speculation.trials is alone


def _planned(monkeypatch: pytest.MonkeyPatch, waited: float, spent: float) -> tuple[int, float]:
    """Return the number of plans in 5000 rounds with plans of this duration, and the rounds' total seconds."""
    batch, plans = SimulatedBatch([0.02] * 4, costs(4, 1.0, 0.5, 1.0)), list[float]()
    batch.run(WARM)
    plan = batch.speculation._plan

    def slow(exploring: bool) -> None:
        batch.clock.now += waited + spent
        batch.spent += spent
        plans.append(batch.clock.now)
        plan(exploring)

    monkeypatch.setattr(batch.speculation, "_plan", slow)
    started = batch.clock.now
    batch.run(5000)
    return len(plans), batch.clock.now - started


def test_judging_takes_a_thousandth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    plans, seconds = _planned(monkeypatch, waited=0.0, spent=0.005)
    assert 0.0 < plans * 0.005 <= 0.003 * seconds  # a trial's start and end each make a plan


def test_a_judgement_that_waited_for_other_threads_holds_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    plans, seconds = _planned(monkeypatch, waited=0.005, spent=0.0)
    assert plans >= 5 * seconds


@pytest.mark.parametrize(
    ("alphas", "costs"),
    [
        ([0.8], RoundSeconds(0.02, 0.001, 0.001, 0.002)),
        ([0.9], RoundSeconds(0.02, 0.0005, 0.001, 0.001)),
        ([0.6], RoundSeconds(0.02, 0.002, 0.002, 0.004)),
        ([0.8] * 4, RoundSeconds(0.02, 0.001, 0.001, 0.002)),
        ([0.3], RoundSeconds(0.02, 0.005, 0.004, 0.01)),
    ],
)
def test_the_speedup_in_answers_is_what_a_pair_of_runs_measures(alphas: list[float], costs: RoundSeconds) -> None:
    batch = SimulatedBatch(alphas, costs, told=DrafterTimes(costs.draft, costs.wait), noise=0.02)
    batch.run(LONG)
    told = batch.sessions[0].speedup()
    assert told.measured > 0.0 or alphas[0] < 0.8, "where drafting pays, both are known by now"
    drafted = batch.run(LONG)
    plain = SimulatedBatch(alphas, costs, noise=0.02).run(LONG, fixed=0)
    for each in (told.predicted, told.measured):
        assert each == 0.0 or each == pytest.approx(drafted / plain, rel=0.25)


def test_estimates_that_contradict_each_other_are_in_no_answer() -> None:
    batch = Mock(report=lambda: Judgement(predicted=3.29, measured=14.75))
    session = SessionGamma(batch, lambda: "model", None, 8)
    assert session.speedup() == Speedup()
    batch.report = lambda: Judgement(predicted=2.1, measured=2.0)
    assert session.speedup() == Speedup(2.1, 2.0)
    batch.report = lambda: Judgement(predicted=2.1, measured=None)
    assert session.speedup() == Speedup()


def test_a_session_that_is_alone_drafts_from_its_first_round_on() -> None:
    alone = SimulatedBatch([0.8], RoundSeconds(0.02, 0.001, 0.001, 0.002))
    alone.run(1)
    assert 0 < alone.gammas[0] <= 4, "nothing is measured, so drafts are short"
    several = SimulatedBatch([0.8] * 4, RoundSeconds(0.02, 0.001, 0.001, 0.002))
    several.run(1)
    assert several.gammas == [0] * 4, "what drafts cost a batch is compared with plain rounds first"


@pytest.mark.parametrize("own", [None, OptimalGamma(lambda: 0.1, lambda: 0.0, 8)])
def test_a_session_learns_from_the_overlaps_of_its_own_drafts(own: OptimalGamma | None) -> None:
    """The third overlap is that of a token that a grammar forced after the draft."""
    batch = Mock(acceptance=FleetAcceptance())
    session = SessionGamma(batch, lambda: "model", own, 8)
    for _ in range(200):
        session.observe(2, 2, (0.5, 0.3, 1.0))
    assert session.demand("model").alpha == pytest.approx(0.4, abs=0.03)
    assert batch.acceptance.overlap == pytest.approx(0.4)
    assert own is None or own.estimate.alpha == pytest.approx(0.4, abs=0.03)


def test_a_round_in_which_the_head_reads_a_prompt_shows_no_wait() -> None:
    def wait_after(prefilling: int) -> float:
        batch = SimulatedBatch([0.8], costs(1, 0.05, 0.05, 0.1), told=DrafterTimes(0.0005))
        batch.run(WARM)
        (session,) = batch.sessions
        drafting = 0
        while not drafting:
            drafting = session.gamma()
            rows = {"rows": 1, "sessions": 1, "computed": 1 + drafting, "committed": 2, "drafting": 1}
            started = batch.clock.now + (0.2 if drafting else 0.001)
            batch.clock.now = started + 0.01
            sample = PassSample(**rows, started=started, seconds=0.01, follows=True, prefilling=prefilling)
            batch.speculation.passed(sample)
        return batch.speculation.costs.wait

    assert wait_after(prefilling=1) < 0.002 < wait_after(prefilling=0)


def test_a_second_draft_is_made_where_its_tokens_are_worth_its_time() -> None:
    """It pays at once where a token costs little, until verdicts show that it is seldom kept."""
    batch = SimulatedBatch([0.4], costs(1, 0.05, 0.03, 0.0))
    batch.run(LONG)
    (session,) = batch.sessions
    assert batch.speculation.report().price < 0.08
    assert batch.speculation.second_pays("model")
    for _ in range(300):
        session.observe_second(kept=False)
    assert not batch.speculation.second_pays("model")
    assert batch.speculation.second_pays("other")
    for _ in range(2000):  # what was seen is forgotten, so that it is tried again
        session.observe_second(kept=None)
    assert batch.speculation.second_pays("model")


def test_no_second_draft_is_made_where_a_token_costs_much() -> None:
    batch = SimulatedBatch([0.4] * 8, costs(8, 0.05, 0.6, 0.0))
    batch.run(LONG)
    assert batch.speculation.report().price > 0.2
    assert not batch.speculation.second_pays("model")
    for _ in range(300):
        batch.sessions[0].observe_second(kept=True)
    assert batch.speculation.second_pays("model")
