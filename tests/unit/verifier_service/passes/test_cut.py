"""The cut: the earliest end wins, and counts cover only the kept tokens."""

import pytest

from specdec.rules.draft import Draft, Verdict
from specdec.rules.speculation import Origin
from specdec.sampling.params import FinishReason
from specdec.wire.generation import Fallback, Round, Speedup
from verifier_service.backends.batch_plan import Outcome
from verifier_service.drafts.drafts import Proposal
from verifier_service.passes.conclude import AskedRound, cut

VERDICT = Verdict((4, 5, 6, 7), accepted=3, drafted=3)


def kept(room: int, ends: frozenset[int]) -> Round:
    """Return the round of a verdict after 10 tokens, with this much room."""
    draft = Draft((4, 5, 6), ())
    asked = AskedRound(10, Proposal(draft), drafted=3, declined=Fallback.NONE, detail=None, since=0.0)
    return asked.reported(cut(VERDICT.tokens, room, ends), Outcome(VERDICT, 0.0, 0.1, offered=3), Speedup(), cached=0)


def test_without_an_end_everything_is_kept() -> None:
    done = kept(5, frozenset())
    assert (done.tokens, done.accepted, done.finish) == ((4, 5, 6, 7), 3, None)
    assert done.base_len == 10
    assert done.origins == (Origin.ACCEPTED, Origin.ACCEPTED, Origin.ACCEPTED, Origin.BONUS)


@pytest.mark.parametrize(
    ("ends", "room", "tokens", "accepted", "finish"),
    [
        ({5}, 9, (4, 5), 2, FinishReason.STOP),
        ({7}, 9, (4, 5, 6, 7), 3, FinishReason.STOP),
        ({7, 4}, 9, (4,), 1, FinishReason.STOP),
        (set(), 4, (4, 5, 6, 7), 3, FinishReason.LENGTH),
        (set(), 2, (4, 5), 2, FinishReason.LENGTH),
        ({6}, 2, (4, 5), 2, FinishReason.LENGTH),
        ({5}, 2, (4, 5), 2, FinishReason.STOP),
    ],
)
def test_the_earliest_end_wins(
    ends: set[int], room: int, tokens: tuple[int, ...], accepted: int, finish: FinishReason
) -> None:
    done = kept(room, frozenset(ends))
    assert (done.tokens, done.accepted, done.finish) == (tokens, accepted, finish)
    assert len(done.origins) == len(tokens)
