"""Text the target writes for the drafter to learn from."""

from pathlib import Path

import pytest
import torch

from models.train import compute
from models.train.architecture import Shape, build
from models.train.data import Windows
from models.train.sampling import SampleJob, sampled_text

PROMPTS = Windows(torch.arange(500) % 32, length=7, seed=0)
JOB = SampleJob(PROMPTS, rows=3, length=20, batches=2, temperatures=(0.0, 1.0), seed=0)
CPU = compute.choose("cpu", threads=None, compiled=False)


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return build(Shape(layers=1, hidden=16, intermediate=32, heads=2, kv_heads=1), vocabulary=32, seed=0).eval()


def test_every_row_opens_with_corpus_text_and_has_the_length_asked_for(model: torch.nn.Module, tmp_path: Path) -> None:
    rows = sampled_text(JOB, model, tmp_path / "rows.pt", CPU)
    assert rows.shape == (6, 20)
    assert torch.equal(rows[:, :8], torch.cat([PROMPTS.batch(index, 3) for index in range(2)]))


def test_the_text_is_a_function_of_the_job_and_the_model(model: torch.nn.Module, tmp_path: Path) -> None:
    first, second = (sampled_text(JOB, model, tmp_path / name, CPU) for name in ("one.pt", "two.pt"))
    assert torch.equal(first, second)


def test_text_already_written_is_read_back_instead_of_sampled_again(model: torch.nn.Module, tmp_path: Path) -> None:
    kept = torch.arange(6)
    torch.save(kept, tmp_path / "rows.pt")
    assert torch.equal(sampled_text(JOB, model, tmp_path / "rows.pt", CPU), kept)
