"""Searches that wait for memory are limited, and each is counted where it is."""

import pytest
from prometheus_client import CollectorRegistry

from specdec.errors import QueueFull
from verifier_service.beams.beam_tally import BeamTally
from verifier_service.metrics import BeamMetrics


def counted(registry: CollectorRegistry) -> tuple[float | None, ...]:
    names = ("searches_running", "searches_waiting", "beams")
    return tuple(registry.get_sample_value(f"specdec_beam_{name}") for name in names)


def test_a_search_counts_where_it_is() -> None:
    registry = CollectorRegistry()
    tally = BeamTally(9, BeamMetrics(registry))
    wide, narrow = tally.enter(4), tally.enter(2)
    assert counted(registry) == (0, 2, 0)
    for _ in range(2):
        wide.hold()
        narrow.hold()
    assert counted(registry) == (2, 0, 6)
    wide.wait()
    assert counted(registry) == (1, 1, 2)
    for place in (wide, narrow, narrow):
        place.leave()
        place.hold()
    assert counted(registry) == (0, 0, 0)


def test_passes_are_counted() -> None:
    registry = CollectorRegistry()
    place = BeamTally(9, BeamMetrics(registry)).enter(4)
    place.passed(1, 0, 1)
    place.passed(4, 24, 3)
    place.found()
    names = ("searches", "tokens", "proposed_tokens", "steps", "accepted_steps")
    assert [registry.get_sample_value(f"specdec_beam_{name}_total") for name in names] == [1, 13, 24, 4, 2]


def test_more_waiting_searches_than_allowed_are_refused() -> None:
    tally = BeamTally(2, BeamMetrics(CollectorRegistry()))
    first, _ = tally.enter(4), tally.enter(4)
    with pytest.raises(QueueFull, match="2 beam searches are waiting already"):
        tally.enter(4)
    first.hold()
    third = tally.enter(4)
    first.wait()
    with pytest.raises(QueueFull):
        tally.enter(4)
    third.leave()
    with pytest.raises(QueueFull):
        tally.enter(4)
