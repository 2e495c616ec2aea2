"""A drafter reports the cost of a longer draft, without the tokens that it reads before a draft."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from drafter_service.config import DrafterSettings
from drafter_service.drafters.model_drafter import ModelDrafter
from drafter_service.metrics import DrafterMetrics
from drafter_service.sessions.draft_runner import DraftRunner
from specdec.serving.settings import ModelSettings
from tests.support.drafter_fakes import PrefixModel


def runner() -> DraftRunner:
    settings = DrafterSettings(model=ModelSettings(path=Path("model")))
    return DraftRunner(ModelDrafter("model", PrefixModel(), 4), settings, DrafterMetrics(CollectorRegistry()))


def measure(drafts: DraftRunner, sessions: int, tokens: int, steps: int) -> None:
    """Measure steps of 6 ms and 0.75 ms per token, each with this many tokens for each session."""
    batch: Any = [SimpleNamespace(count=tokens)] * sessions
    for _ in range(steps):
        drafts._measure(batch, 0.006 + 0.00075 * tokens * sessions)


def test_before_the_first_step_it_is_what_was_measured_at_load() -> None:
    drafts = runner()
    assert drafts.load.step_seconds == drafts._drafter.info.step_seconds > 0


def test_a_first_step_that_reads_prompts_is_not_taken_for_one_that_drafts() -> None:
    drafts = runner()
    measure(drafts, 16, 64, steps=1)
    assert drafts.load.step_seconds < 0.050  # the step itself took 0.77 s


@pytest.mark.parametrize("reading", [4, 64])
def test_prefill_before_a_draft_is_no_part_of_its_step(reading: int) -> None:
    drafts = runner()
    measure(drafts, 16, reading, steps=8)
    measure(drafts, 16, 2, steps=50)
    assert drafts.load.step_seconds == pytest.approx(0.006 + 0.00075 * 16, rel=0.15)


def test_where_all_steps_are_alike_it_is_theirs() -> None:
    drafts = runner()
    measure(drafts, 16, 1, steps=1000)
    assert drafts.load.step_seconds == pytest.approx(0.018)
