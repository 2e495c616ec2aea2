"""The learning-rate schedule, and the assignment of parameters to optimizers."""

import itertools

import pytest
import torch

from models.train.architecture import Shape, build
from specdec.training.optimizer import Schedule, build_optimizers, set_learning_rates, split_parameters

TINY = Shape(layers=1, hidden=16, intermediate=32, heads=2, kv_heads=1)


def test_the_rate_rises_stays_and_falls_to_almost_nothing() -> None:
    schedule = Schedule(steps=100, warmup=10, decay_share=0.3)
    factors = [schedule.factor(step) for step in range(100)]
    assert factors[0] == pytest.approx(0.1)
    assert factors[9:71] == [1.0] * 62
    assert factors[85] == pytest.approx(0.5)
    assert factors[99] == pytest.approx(1 / 30)
    assert all(later < earlier for earlier, later in itertools.pairwise(factors[70:]))


def test_the_number_of_steps_may_change_until_the_decay_starts() -> None:
    short, long = Schedule(100, 10, 0.3), Schedule(1000, 10, 0.3)
    assert short.decay_start == 70
    assert [short.factor(s) for s in range(71)] == [long.factor(s) for s in range(71)]


def test_hidden_matrices_go_to_muon_and_embeddings_and_norms_to_adamw() -> None:
    model = build(TINY, vocabulary=32, seed=0)
    matrices, rest = split_parameters(model)
    assert len(matrices) == 7
    assert {p.shape for p in rest} == {torch.Size([32, 16]), torch.Size([16])}
    assert len(matrices) + len(rest) == len(list(model.parameters()))


def test_setting_the_rate_twice_does_not_compound() -> None:
    optimizers = build_optimizers(build(TINY, vocabulary=32, seed=0), 0.5, torch.float32)
    for factor in (0.1, 0.5):
        set_learning_rates(optimizers, factor)
    assert [optimizer.param_groups[0]["lr"] for optimizer in optimizers] == [0.25, 0.25]


def test_muon_in_float32_updates_as_pytorchs_does() -> None:
    first = build(TINY, vocabulary=32, seed=0)
    gradients = [[torch.randn_like(each) for each in split_parameters(first)[0]] for _ in range(3)]
    made = []
    for dtype in (torch.bfloat16, torch.float32):
        model = build(TINY, vocabulary=32, seed=0)
        matrices, optimizer = split_parameters(model)[0], build_optimizers(model, 0.1, dtype)[0]
        for step in gradients:
            for matrix, gradient in zip(matrices, step, strict=True):
                matrix.grad = gradient.clone()
            optimizer.step()
        made.append(torch.cat([matrix.detach().flatten() for matrix in matrices]))
    moved = made[0] - torch.cat([matrix.detach().flatten() for matrix in split_parameters(first)[0]])
    assert (made[0] - made[1]).norm() < 0.03 * moved.norm()
