"""The choice of a session's drafter."""

import math

import pytest

from specdec.wire.generation import Fallback
from specdec.wire.session import Load
from tests.unit.verifier_service.verifier_fakes import make_link
from verifier_service.drafts.link import DrafterLink
from verifier_service.drafts.pool import DrafterPool
from verifier_service.speculation.costs import DrafterTimes

SESSIONS = [f"session-{index}" for index in range(60)]


def ready_links(*round_trips: float) -> list[DrafterLink]:
    """Return ready links with these ping times."""
    links = [make_link(address=f"d{index}:1") for index in range(len(round_trips))]
    for link, seconds in zip(links, round_trips, strict=True):
        link.connected("small", 0.1)
        link.round_trip(seconds)
    return links


def chosen(links: list[DrafterLink]) -> dict[str, DrafterLink | None]:
    pool = DrafterPool(links)
    return {session: pool.choose(session, ()) for session in SESSIONS}


def test_a_lost_drafter_moves_only_its_own_sessions() -> None:
    links = [make_link(address=f"d{index}:1") for index in range(3)]
    for link in links:
        link.connected("small", 0.1)
    pool = DrafterPool(links)
    sessions = [f"session-{index}" for index in range(60)]
    before = {session: pool.choose(session, ()) for session in sessions}
    assert set(before.values()) == set(links)
    links[0].lost("gone")
    after = {session: pool.choose(session, ()) for session in sessions}
    assert all(after[session] is link for session, link in before.items() if link is not links[0])
    assert links[0] not in after.values()


def test_the_pool_averages_what_ready_drafters_say_a_step_takes() -> None:
    links = [make_link(address=f"d{index}:1") for index in range(3)]
    assert DrafterPool(links).times() == DrafterTimes(None, 0.0)
    links[0].connected("small", 0.1)
    links[1].connected("small", 0.3)
    links[1].round_trip(0.02)
    assert DrafterPool(links).times() == DrafterTimes(0.2, 0.01)


@pytest.mark.parametrize("claim", [math.inf, 1e300])
def test_what_a_drafter_says_of_its_speed_is_believed_up_to_a_limit(claim: float) -> None:
    link = make_link()
    link.connected("small", claim)
    assert DrafterPool([link]).times() == DrafterTimes(10.0)


def test_drafters_that_are_near_come_first() -> None:
    near, far, also_near = ready_links(0.0002, 0.005, 0.0007)
    assert set(chosen([near, far, also_near]).values()) == {near, also_near}


def test_one_late_answer_makes_no_drafter_far() -> None:
    links = ready_links(0.0002, 0.0003)
    before = chosen(links)
    links[0].round_trip(0.2)
    assert chosen(links) == before
    assert set(before.values()) == set(links)


def test_near_drafters_with_much_more_than_their_share_are_not_preferred() -> None:
    near, far = links = ready_links(0.0002, 0.005)
    for sessions, expected in ((13, {near}), (14, {near, far})):
        near.loaded(Load(sessions, 0.1))
        far.loaded(Load(7, 0.1))
        assert set(chosen(links).values()) == expected


def test_in_one_zone_a_session_keeps_its_drafter_whatever_the_load() -> None:
    links = ready_links(0.0002, 0.0003)
    before = chosen(links)
    links[0].loaded(Load(1000, 0.1))
    assert chosen(links) == before


def test_where_the_near_are_lost_the_far_are_taken() -> None:
    near, far = links = ready_links(0.0002, 0.005)
    near.lost("gone")
    assert set(chosen(links).values()) == {far}


def test_drafters_with_a_language_model_serve_sessions_that_name_none() -> None:
    links = ready_links(0.0002, 0.0002, 0.0002, 0.0002)
    for link, kind in zip(links, ("counts", "model", "ngram", "hybrid"), strict=True):
        link.connected("small", 0.3 if kind in ("model", "hybrid") else 0.0001, kind)
    assert set(chosen(links).values()) == {links[1], links[3]}
    assert DrafterPool(links).times().step == pytest.approx(0.3)
    assert {DrafterPool(links).choose(session, (), "ngram") for session in SESSIONS} == {links[2]}


def test_other_kinds_draft_where_every_language_model_is_lost_or_avoided() -> None:
    links = ready_links(0.0002, 0.0002)
    links[1].connected("small", 0.1, "counts")
    assert DrafterPool(links).choose("s", (links[0].address,)) is links[1]
    links[0].lost("gone")
    assert set(chosen(links).values()) == {links[1]}


@pytest.mark.parametrize("links", [[], [make_link()]], ids=["none", "never met"])
def test_without_an_expected_drafter_its_absence_is_no_fault(links: list[DrafterLink]) -> None:
    pool = DrafterPool(links, expected=False)
    assert pool.absence() is Fallback.NO_MATCH
    assert pool.states() == []
    assert DrafterPool(links).absence() is Fallback.UNAVAILABLE


def test_a_lost_drafter_is_a_fault_even_if_none_was_expected() -> None:
    link = make_link()
    pool = DrafterPool([link], expected=False)
    link.connected("small", 0.1)
    link.lost("gone")
    assert pool.absence() is Fallback.UNAVAILABLE
    assert len(pool.states()) == 1


def test_a_drafter_is_chosen_by_kind_model_or_address_only() -> None:
    links = [make_link(address=f"d{index}:1") for index in range(2)]
    links[0].connected("small", 0.1)
    links[1].connected("words", 0.1, "counts")
    pool = DrafterPool(links)
    for name, link in (("model", 0), ("small", 0), ("d0:1", 0), ("counts", 1), ("words", 1), ("d1:1", 1)):
        assert pool.choose("s", (), name) is links[link]
    assert pool.choose("s", (), "suffix") is None
    assert pool.names() == {"model", "small", "d0:1", "counts", "words", "d1:1"}
    assert [state.kind for state in pool.states()] == ["model", "counts"]
