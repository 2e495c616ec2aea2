"""The desired number of drafters, and which desires are stable."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.ratio_controller.config import ScalingSettings
from gateway.ratio_controller.policy import Stabiliser, recommend
from specdec.serving.telemetry.snapshot import MetricsSnapshot
from tests.support.metrics_fakes import SNAPSHOT

SETTINGS = ScalingSettings(up_seconds=30, down_seconds=300)


def test_the_ratio_leads() -> None:
    found = recommend(SNAPSHOT, 2, SETTINGS)
    assert (found.drafters, found.reason, found.ratio) == (2, "ratio", pytest.approx(0.48))
    assert recommend(replace(SNAPSHOT, verifiers=20), 2, SETTINGS).drafters == 10


def test_where_drafting_does_not_pay_the_minimum_is_enough() -> None:
    found = recommend(replace(SNAPSHOT, alpha=0.1, draft_step=0.02), 8, SETTINGS)
    assert (found.drafters, found.reason) == (1, "does_not_pay")


def test_starved_rounds_add_one_drafter() -> None:
    found = recommend(replace(SNAPSHOT, starvation=0.3, draft_busy=0.95), 3, SETTINGS)
    assert (found.drafters, found.reason) == (4, "starvation")


def test_starved_rounds_with_idle_drafters_add_none() -> None:
    assert recommend(replace(SNAPSHOT, starvation=0.3, draft_busy=0.1), 3, SETTINGS).drafters == 2


def test_idle_drafters_are_fewer_than_the_ratio() -> None:
    found = recommend(replace(SNAPSHOT, verifiers=20, draft_busy=0.2), 10, SETTINGS)
    assert (found.drafters, found.reason) == (3, "idle")


def test_drafters_that_share_too_few_sessions_do_not_look_needed() -> None:
    sharing = replace(SNAPSHOT, verifiers=20, draft_batch=8.0)
    assert recommend(sharing, 40, SETTINGS).drafters == 40, "the batches they measure say so"
    assert recommend(sharing, 40, replace_settings(draft_batch=32.0)).drafters == 10


def test_a_small_difference_is_not_worth_a_change() -> None:
    assert recommend(replace(SNAPSHOT, verifiers=20), 10, SETTINGS).drafters == 10
    assert recommend(replace(SNAPSHOT, verifiers=22), 10, SETTINGS).drafters == 10
    assert recommend(replace(SNAPSHOT, verifiers=24), 10, SETTINGS).drafters == 12


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"verifiers": 0}, "no_verifier"),
        ({"draft_step": None}, "no_numbers"),
        ({"verify_pass": None, "gamma": None}, "no_numbers"),
    ],
)
def test_without_numbers_nothing_changes(change: dict[str, None], reason: str) -> None:
    found = recommend(replace(SNAPSHOT, **change), 5, SETTINGS)  # type: ignore[arg-type]
    assert (found.drafters, found.reason) == (5, reason)


def test_verifiers_that_work_and_ask_for_no_draft_need_no_drafters() -> None:
    found = recommend(replace(SNAPSHOT, gamma=None, alpha=None), 5, SETTINGS)
    assert (found.drafters, found.reason) == (1, "nobody_asks")


def test_with_no_drafters_one_is_tried() -> None:
    nothing = MetricsSnapshot(verifiers=4, verify_pass=0.02)
    assert recommend(nothing, 0, replace_settings(minimum=0)).drafters == 1


def replace_settings(**changes: float) -> ScalingSettings:
    return ScalingSettings.model_validate(SETTINGS.model_dump() | changes)


@given(
    st.builds(
        MetricsSnapshot,
        verifiers=st.integers(0, 500),
        drafters=st.integers(0, 100),
        alpha=st.none() | st.floats(0, 1),
        gamma=st.none() | st.floats(0, 16),
        starvation=st.none() | st.floats(0, 1),
        draft_step=st.none() | st.floats(1e-5, 1),
        draft_batch=st.none() | st.floats(1, 512),
        verify_pass=st.none() | st.floats(1e-5, 1),
        verify_batch=st.none() | st.floats(1, 512),
        draft_busy=st.none() | st.floats(0, 1),
    ),
    st.integers(0, 100),
    st.integers(0, 5),
    st.integers(5, 20),
)
def test_a_wish_keeps_within_the_limits(snapshot: MetricsSnapshot, current: int, minimum: int, maximum: int) -> None:
    settings = replace_settings(minimum=minimum, maximum=maximum)
    assert minimum <= recommend(snapshot, current, settings).drafters <= maximum


def test_more_is_had_only_when_it_was_wanted_for_a_while() -> None:
    stabiliser = Stabiliser(SETTINGS)
    had = [stabiliser.settle(wanted, 2, now) for now, wanted in [(0, 5), (10, 4), (20, 6), (30, 5), (40, 5)]]
    assert had == [2, 2, 2, 4, 4]


def test_one_low_wish_begins_the_wait_anew() -> None:
    stabiliser = Stabiliser(SETTINGS)
    had = [stabiliser.settle(wanted, 2, now) for now, wanted in [(0, 5), (10, 2), (20, 5), (30, 5), (40, 5), (50, 5)]]
    assert had == [2, 2, 2, 2, 2, 5]


def test_fewer_is_had_only_after_the_longer_wait() -> None:
    stabiliser = Stabiliser(SETTINGS)
    had = {now: stabiliser.settle(2, 8, now) for now in range(0, 310, 10)}
    assert [now for now, drafters in had.items() if drafters != 8] == [300]
    assert had[300] == 2


def test_the_most_that_was_wanted_meanwhile_is_kept() -> None:
    stabiliser = Stabiliser(SETTINGS)
    for now in range(0, 300, 10):
        stabiliser.settle(6 if now == 150 else 2, 8, now)
    assert stabiliser.settle(2, 8, 300) == 6


def test_without_drafters_the_wait_is_the_retry() -> None:
    stabiliser = Stabiliser(replace_settings(minimum=0, retry=600))
    had = {now: stabiliser.settle(1, 0, now) for now in range(0, 610, 10)}
    assert [now for now, drafters in had.items() if drafters] == [600]


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 9)), min_size=1, max_size=40), st.integers(1, 9))
def test_what_is_had_was_wanted_or_is_there_already(steps: list[tuple[int, int]], current: int) -> None:
    stabiliser, now, wishes = Stabiliser(SETTINGS), 0, []
    for pause, wanted in steps:
        now += pause
        wishes.append(wanted)
        assert stabiliser.settle(wanted, current, now) in {*wishes, current}
