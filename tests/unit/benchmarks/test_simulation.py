"""The simulated tiers match the closed form where it holds, and lose no session."""

from pathlib import Path

import pytest

from benchmarks.simulation.__main__ import place
from benchmarks.simulation.regions import DRAFTS, regions, speed_ratio
from benchmarks.simulation.scenarios import knee, losses, measure, predicted
from benchmarks.simulation.tiers import Tiers
from benchmarks.simulation.world import World
from specdec.planning.sizing import RoundCosts

WORLD = World()


def test_short_of_drafters_the_closed_form_holds() -> None:
    point = measure(WORLD, sessions=250, verifiers=4, drafters=1, seconds=2.0)
    assert point.tokens_per_second == pytest.approx(point.predicted, rel=0.03)


def test_with_sessions_enough_the_knee_is_at_the_ratio() -> None:
    one, two, three = knee(WORLD, 400, [0.25, 0.5, 0.75], 2.0, spare=2.0)
    assert two.tokens_per_second > 1.8 * one.tokens_per_second
    assert three.tokens_per_second == pytest.approx(two.tokens_per_second, rel=0.03)
    assert two.tokens_per_second == pytest.approx(two.predicted, rel=0.03)


def test_the_same_seed_is_the_same_run() -> None:
    assert measure(WORLD, 50, 1, 1, 1.0, seed=3) == measure(WORLD, 50, 1, 1, 1.0, seed=3)


def test_without_drafters_it_is_plain_decoding() -> None:
    tiers = Tiers(WORLD, verifiers=1, drafters=0)
    tiers.open(64)
    tiers.run(2.0)
    assert tiers.counters["tokens"] == tiers.counters["rounds"]
    assert tiers.counters["tokens"] / 2.0 == pytest.approx(32 / WORLD.verify_seconds(32), rel=0.05)


def test_every_session_goes_on_when_nodes_are_lost() -> None:
    tiers = Tiers(WORLD, verifiers=3, drafters=2)
    tiers.open(60)
    tiers.run(1.0)
    tiers.lose_drafter()
    tiers.lose_verifier()
    tiers.run(3.0)
    before = [session.round for session in tiers.sessions]
    tiers.run(4.0)
    assert all(session.round > was for session, was in zip(tiers.sessions, before, strict=True))
    assert sum(len(server.members) for server in tiers.verifiers) == 60


def test_a_lost_drafter_costs_speed_and_comes_back() -> None:
    moments = losses(WORLD, seconds=35)
    before, during, after = (
        sum(moment.tokens_per_second for moment in moments[start : start + 5]) for start in (8, 18, 29)
    )
    assert during < before
    assert after == pytest.approx(before, rel=0.05)


def test_few_sessions_are_predicted_by_their_own_rounds() -> None:
    assert predicted(WORLD, 1, 10, 10) == pytest.approx(WORLD.costs().tokens_per_round / WORLD.costs().round_seconds)


def test_apart_wins_with_full_verifiers_and_in_turns_with_few_sessions() -> None:
    ratios = regions(WORLD, 0.1)
    assert [row[0] < 1.0 < row[-1] for row in ratios[1:]] == [True] * (len(DRAFTS) - 1)
    assert ratios[19][-1] == pytest.approx(2.0 / 1.1)


def test_drafters_at_a_verifiers_price_never_win(tmp_path: Path) -> None:
    assert max(max(row) for row in regions(WORLD, 1.0)) <= 1.0 + 1e-9
    place(WORLD, tmp_path / "placement.png")
    assert (tmp_path / "placement.png").stat().st_size


@pytest.mark.parametrize(
    ("load", "ratio"),
    [(0.25, 37 / 39), (1.0, 37 / 39), (1.2, 1.2 * 37 / 39), (1.56, 1.48), (10.0, 1.48)],
)
def test_apart_is_slower_with_few_clients_and_faster_with_many(load: float, ratio: float) -> None:
    costs = RoundCosts(0.7, 4, 0.003, 0.025, 0.020, draft_batch=32, verify_batch=32, round_trip=0.002)
    assert speed_ratio(costs, load, 0.0, 0.0) == pytest.approx(ratio)
    assert speed_ratio(costs, load, 0.48, 0.1) == pytest.approx(ratio / 1.048)
