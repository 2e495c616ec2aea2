"""The verdicts' share of time is measured in every case, on drafts that are mostly accepted."""

from pathlib import Path

import pytest

from benchmarks.pair import Pair
from benchmarks.sections import verdicts
from benchmarks.sections.lab import Lab
from benchmarks.sections.scale import quick
from specdec.rules.speculation import Mode
from tests.support.tiny_models import make_tiny_model
from verifier_service.backends.target_pass import judge_batch

DRAFTS, SESSIONS = 4, 32


@pytest.mark.parametrize("mode", [Mode.REJECTION, Mode.COUPLED])
@pytest.mark.parametrize("sampling", verdicts.SAMPLING)
def test_most_drafts_are_accepted(sampling: str, mode: Mode) -> None:
    logits = verdicts._logits(SESSIONS * (DRAFTS + 1), 512)
    own = logits.view(SESSIONS, DRAFTS + 1, -1)
    rows = [verdicts._row(b, verdicts.SAMPLING[sampling], mode, own[b, :DRAFTS]) for b in range(SESSIONS)]
    judged = judge_batch(rows, logits)
    assert sum(verdict.accepted for verdict in judged) > 0.75 * DRAFTS * SESSIONS


def test_a_quick_run_has_every_case(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "target")
    with Lab(quick(Pair(model, model))) as lab:
        report = verdicts.measure(lab)
    (table,) = report.tables
    assert len(table.rows) == 3 * len(verdicts.SAMPLING)
    assert all(0.0 < float(row[-1]) < 1.0 for row in table.rows)
