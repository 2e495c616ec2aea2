"""Sizing: the least sufficient number, the ratio of the formula, and no drafters if drafting does not pay."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.planning.sizing import Policy, RoundCosts, drafters_per_verifier, pays, size

EXAMPLE = RoundCosts(
    alpha=0.7,
    gamma=4,
    draft_step=0.003,
    verify_pass=0.025,
    plain_pass=0.022,
    draft_batch=32,
    verify_batch=32,
    round_trip=0.002,
)
FULL = Policy(verify_busy=1.0, draft_busy=1.0)
SECONDS = st.floats(1e-4, 1.0)
COSTS = st.builds(
    RoundCosts,
    alpha=st.floats(0.0, 1.0),
    gamma=st.integers(0, 16),
    draft_step=SECONDS,
    verify_pass=SECONDS,
    plain_pass=SECONDS,
    draft_batch=st.integers(1, 256),
    verify_batch=st.integers(1, 256),
    round_trip=st.floats(0.0, 0.1),
)
POLICIES = st.builds(Policy, verify_busy=st.floats(0.1, 1.0), draft_busy=st.floats(0.1, 1.0))
WANTED = st.floats(1.0, 1e6)


def test_a_worked_example() -> None:
    found = size(14190, EXAMPLE, FULL)
    assert (found.verifiers, found.drafters) == (4, 2)
    assert found.ratio == pytest.approx(0.48)
    assert found.tokens_per_round == pytest.approx(2.7731)
    assert found.sessions_per_verifier == 50
    assert found.speedup == pytest.approx(2.7731 * 22 / 39)
    assert found.plain_verifiers == 10


@given(WANTED, COSTS, POLICIES)
def test_the_replicas_are_enough_and_one_fewer_is_not(wanted: float, costs: RoundCosts, policy: Policy) -> None:
    found = size(wanted, costs, policy)
    seconds = costs.verify_pass if found.pays else costs.plain_pass
    verify = costs.verify_batch * policy.verify_busy / seconds * found.tokens_per_round
    assert found.verifiers * verify >= wanted * (1 - 1e-6)
    assert found.verifiers == 1 or (found.verifiers - 1) * verify < wanted * (1 + 1e-6)
    if found.pays:
        draft = costs.draft_batch * policy.draft_busy / (costs.gamma * costs.draft_step) * found.tokens_per_round
        assert found.drafters * draft >= wanted * (1 - 1e-6)
        assert found.drafters == 1 or (found.drafters - 1) * draft < wanted * (1 + 1e-6)


@given(COSTS, POLICIES)
def test_at_a_large_throughput_the_counts_have_the_ratio(costs: RoundCosts, policy: Policy) -> None:
    found = size(1e12, costs, policy)
    assert found.drafters / found.verifiers == pytest.approx(found.ratio, rel=1e-3)


@given(COSTS, POLICIES, st.floats(0.0, 1.0))
def test_acceptance_does_not_move_the_ratio(costs: RoundCosts, policy: Policy, alpha: float) -> None:
    assert drafters_per_verifier(replace(costs, alpha=alpha), policy) == drafters_per_verifier(costs, policy)


@given(COSTS, POLICIES, WANTED, WANTED)
def test_more_throughput_never_takes_less(costs: RoundCosts, policy: Policy, one: float, other: float) -> None:
    less, more = (size(wanted, costs, policy) for wanted in sorted((one, other)))
    assert less.verifiers <= more.verifiers
    assert less.drafters <= more.drafters


@given(WANTED, COSTS)
def test_where_drafting_does_not_pay_there_are_no_drafters(wanted: float, costs: RoundCosts) -> None:
    policy = Policy(min_speedup=max(costs.speedup, 1.0))
    found = size(wanted, costs, policy)
    assert not pays(costs, policy)
    assert (found.drafters, found.gamma, found.ratio, found.tokens_per_round) == (0, 0, 0.0, 1.0)
    assert found.verifiers == found.plain_verifiers


def test_the_best_gamma_is_that_of_the_speedup() -> None:
    assert EXAMPLE.best_gamma == 3
    assert replace(EXAMPLE, alpha=0.1, draft_step=0.02).best_gamma == 0


@pytest.mark.parametrize(
    "wrong", [{"alpha": 1.1}, {"alpha": -0.1}, {"gamma": -1}, {"draft_step": 0.0}, {"verify_batch": 0}]
)
def test_what_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"must"):
        replace(EXAMPLE, **wrong)  # type: ignore[arg-type]


def test_a_throughput_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="must be positive"):
        size(0.0, EXAMPLE, FULL)
    with pytest.raises(ValueError, match="must be in"):
        Policy(draft_busy=0.0)
