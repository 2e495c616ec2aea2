"""A killed training run continues to the weights of one that was never killed."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers import LlamaForCausalLM

from models.train.architecture import Shape, build
from models.train.data import Windows
from specdec.training import checkpoint
from specdec.training.loop import Run, train
from specdec.training.optimizer import Schedule, build_optimizers

TINY = Shape(layers=2, hidden=16, intermediate=32, heads=2, kv_heads=1)
STEPS = 8


class KilledError(Exception):
    """Simulates the end of the process."""


def _run(path: Path, dies_at: int | None = None) -> LlamaForCausalLM:
    model = build(TINY, vocabulary=32, seed=0)
    windows = Windows(torch.arange(500) * 7 % 32, length=12, seed=0)

    def loss_of(step: int) -> Tensor:
        if step == dies_at:
            raise KilledError
        batch = windows.batch(step, 4)
        logits = model(input_ids=batch[:, :-1], use_cache=False).logits
        return functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())

    run = Run("tiny", Schedule(STEPS, 2, 0.5), tokens_per_step=48, checkpoint=path, checkpoint_seconds=0)
    train(run, model, build_optimizers(model, 0.01, torch.float32), loss_of)
    return model


def _same(one: LlamaForCausalLM, other: LlamaForCausalLM) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("dies_at", [1, 5])
def test_a_run_killed_and_resumed_ends_with_the_same_bits(tmp_path: Path, dies_at: int) -> None:
    with pytest.raises(KilledError):
        _run(tmp_path / "killed.pt", dies_at)
    assert _same(_run(tmp_path / "killed.pt"), _run(tmp_path / "whole.pt"))


def test_training_changes_the_weights_and_a_finished_run_is_not_repeated(tmp_path: Path) -> None:
    trained = _run(tmp_path / "run.pt")
    assert not _same(trained, build(TINY, vocabulary=32, seed=0))
    assert _same(_run(tmp_path / "run.pt", dies_at=0), trained)


def test_a_save_that_dies_half_way_leaves_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.pt"
    model = build(TINY, vocabulary=32, seed=0)
    optimizers = build_optimizers(model, 0.01, torch.float32)
    checkpoint.save(path, model, optimizers, step=3)

    def dies(*_: object) -> None:
        raise KilledError

    monkeypatch.setattr(checkpoint.torch, "save", dies)
    with pytest.raises(KilledError):
        checkpoint.save(path, model, optimizers, step=4)
    assert checkpoint.restore(path, model, optimizers) == 3


def test_initial_weights_depend_on_the_seed_and_not_the_global_generator() -> None:
    before = torch.get_rng_state()
    first = build(TINY, vocabulary=32, seed=5)
    assert torch.equal(torch.get_rng_state(), before)
    assert _same(first, build(TINY, vocabulary=32, seed=5))
    assert not _same(first, build(TINY, vocabulary=32, seed=6))
