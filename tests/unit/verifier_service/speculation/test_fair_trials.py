"""Baselines of trials: plain passes as they run without drafts, and batches of the same size."""

import pytest

from tests.unit.verifier_service.speculation.simulated_batch import LONG, WARM, SimulatedBatch, costs, plain_rate
from verifier_service.speculation.costs import PassSample
from verifier_service.speculation.trials import BatchRound


def test_trials_compare_drafts_with_plain_passes_that_run_ahead() -> None:
    """Passes that do not run ahead take half as long again."""
    batch = SimulatedBatch([0.7] * 4, costs(4, 0.05, 0.3, 0.1), loop=0.005)
    batch.run(WARM)
    gain = batch.run(LONG) / plain_rate(batch)
    assert gain > 1.2
    assert batch.speculation.report().measured == pytest.approx(gain, rel=0.1)


@pytest.mark.parametrize("sessions", [12, 22])
def test_a_second_of_plain_decoding_has_one_worth_for_every_batch_size(
    sessions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both sizes are of one class, so their rounds are compared with one another."""
    batch, seen = SimulatedBatch([0.02] * sessions, costs(sessions, 3.0, 0.3, 10.0)), list[BatchRound]()
    batch.run(WARM)
    monkeypatch.setattr(batch.speculation.trials, "observe", seen.append)
    batch.run(20)
    assert [done.drafted for done in seen] == [False] * 20
    assert sum(done.worth for done in seen) == pytest.approx(sum(done.seconds for done in seen), rel=0.05)


@pytest.mark.parametrize(("others", "guessed"), [(0, True), (1, False)])
def test_drafts_that_others_fix_are_no_guesses(others: int, guessed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, seen = SimulatedBatch([0.9] * 4, costs(4, 0.05, 0.4, 0.1), source=None), list[BatchRound]()
    batch.run(WARM)
    monkeypatch.setattr(batch.speculation.trials, "observe", seen.append)
    for session in batch.sessions:
        session.gamma()
    rows = 4 + others
    batch.speculation.passed(PassSample(rows, rows, rows + 4, rows + 2, 2, batch.clock.now, 0.012, True))
    assert [done.guessed for done in seen] == [guessed]
