"""The cut: the earliest end wins, and counts are of what was kept."""

import pytest

from specdec.rules.draft import Verdict
from specdec.rules.speculation import Origin
from specdec.sampling.params import FinishReason
from verifier_service.passes.conclude import cut

VERDICT = Verdict((4, 5, 6, 7), accepted=3, drafted=3)


def test_without_an_end_everything_is_kept() -> None:
    kept = cut(VERDICT, 10, 15, ())
    assert (kept.tokens, kept.accepted, kept.finish) == ((4, 5, 6, 7), 3, None)
    assert kept.base_len == 10
    assert kept.origins == (Origin.ACCEPTED, Origin.ACCEPTED, Origin.ACCEPTED, Origin.BONUS)


@pytest.mark.parametrize(
    ("ends", "room", "tokens", "accepted", "finish"),
    [
        ({5}, 9, (4, 5), 2, FinishReason.STOP),
        ({7}, 9, (4, 5, 6, 7), 3, FinishReason.STOP),
        ({7, 4}, 9, (4,), 1, FinishReason.STOP),
        ((), 4, (4, 5, 6, 7), 3, FinishReason.LENGTH),
        ((), 2, (4, 5), 2, FinishReason.LENGTH),
        ({6}, 2, (4, 5), 2, FinishReason.LENGTH),
        ({5}, 2, (4, 5), 2, FinishReason.STOP),
    ],
)
def test_the_earliest_end_wins(
    ends: set[int], room: int, tokens: tuple[int, ...], accepted: int, finish: FinishReason
) -> None:
    kept = cut(VERDICT, 10, 10 + room, ends)
    assert (kept.tokens, kept.accepted, kept.finish) == (tokens, accepted, finish)
    assert len(kept.origins) == len(tokens)
