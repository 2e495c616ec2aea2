"""While prompts are known to fill the next pass, sessions draft beside it if two passes then commit more tokens."""

import pytest

from specdec.planning.allotment import RoundSeconds
from tests.unit.verifier_service.speculation.simulated_batch import SimulatedBatch
from verifier_service.speculation.costs import PassSample
from verifier_service.speculation.trials import BatchRound

SESSIONS = 8
SLOW = RoundSeconds(0.004, 0.006 / SESSIONS, 0.050, 0.010)
"""Plain passes of 10 ms, and drafts too slow to pay."""
PROMPT = 512


def _plain(alpha: float) -> SimulatedBatch:
    """Return a batch that does not draft and has estimated its acceptance rate."""
    batch = SimulatedBatch([alpha] * SESSIONS, SLOW)
    batch.run(300)
    for session in batch.sessions:
        for _ in range(30):
            session.observe(1, int(batch.dice.random() < alpha))
    batch.run(1)
    assert not any(batch.gammas)
    return batch


def _gammas(batch: SimulatedBatch) -> list[int]:
    return [session.gamma() for session in batch.sessions]


@pytest.mark.parametrize(("alpha", "drafts"), [(0.9, True), (0.4, False)])
def test_good_drafts_are_made_while_prompts_are_read(alpha: float, drafts: bool) -> None:
    batch = _plain(alpha)
    batch.burst(SESSIONS, PROMPT, left=1)
    assert all(_gammas(batch)) is drafts
    assert any(_gammas(batch)) is drafts


def test_none_are_made_when_the_last_prompt_is_read() -> None:
    batch = _plain(0.9)
    batch.burst(SESSIONS, PROMPT, left=1)
    batch.burst(SESSIONS, PROMPT, left=0)
    assert not any(_gammas(batch))


def test_trials_do_not_count_passes_with_drafts_made_beside_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, seen = _plain(0.9), list[BatchRound]()
    batch.burst(SESSIONS, PROMPT, left=1)
    monkeypatch.setattr(batch.speculation.trials, "observe", seen.append)
    _gammas(batch)
    batch.burst(SESSIONS // 2, PROMPT // 2)
    assert not any(_gammas(batch))
    now, rows = batch.clock.now, SESSIONS // 2
    batch.speculation.passed(PassSample(rows, rows, 3 * rows, 3 * rows, rows, now, 0.02, follows=True))
    assert seen == []
    batch.run(1)
    assert [done.drafted for done in seen] == [False]
