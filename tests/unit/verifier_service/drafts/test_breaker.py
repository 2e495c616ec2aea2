"""A breaker opens after consecutive failures and then allows single trials at intervals."""

from verifier_service.drafts.link import Breaker


def test_it_stays_closed_below_its_threshold() -> None:
    breaker = Breaker(threshold=2, probe=10)
    breaker.failed(0)
    assert breaker.allows(1)


def test_open_it_allows_one_try_every_probe_interval() -> None:
    breaker = Breaker(threshold=2, probe=10)
    breaker.failed(0)
    breaker.failed(1)
    assert [breaker.allows(now) for now in (5, 10, 11, 12, 20, 21)] == [False, False, True, False, False, True]


def test_a_success_closes_it() -> None:
    breaker = Breaker(threshold=1, probe=10)
    breaker.failed(0)
    breaker.succeeded()
    assert breaker.allows(1)
