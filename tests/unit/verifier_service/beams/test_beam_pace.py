"""A search drafts where a step with proposals is measured to be faster."""

import pytest

from verifier_service.beams.beam_pace import BeamPace


def drafted(pace: BeamPace, with_proposals: float, passes: int) -> int:
    """Return the number of passes with proposals, each of two steps; a pass without takes a second for one."""
    chosen = 0
    for _ in range(passes):
        way = pace.drafts()
        chosen += way
        pace.observe(way, with_proposals if way else 1.0, 2 if way else 1)
    return chosen


@pytest.mark.parametrize(("seconds", "share"), [(1.0, 0.9), (1.9, 0.9), (2.5, 0.0), (9.0, 0.0)])
def test_the_faster_way_is_chosen_and_the_other_tried(seconds: float, share: float) -> None:
    pace = BeamPace()
    drafted(pace, seconds, 16)
    chosen = drafted(pace, seconds, 320)
    assert 5 <= chosen <= 315
    assert chosen / 320 == pytest.approx(share, abs=0.1)


def test_a_change_is_noticed() -> None:
    pace = BeamPace()
    drafted(pace, 9.0, 100)
    assert drafted(pace, 0.1, 2000) > 1000
