"""The distillation loss and the α estimators, on distributions with known results."""

from dataclasses import replace

import pytest
import torch

from models.train.architecture import Shape, build
from models.train.distill import divergences, total_variation
from models.train.evaluate import agreement, held_out_loss, overlap
from models.train.sampling import continue_rows
from specdec.training.losses import blend
from specdec.training.step_cost import step_cost
from specdec.training.weights import initial_drafter

P = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
Q = torch.tensor([[0.2, 0.3, 0.5], [0.3, 0.1, 0.6]])
TINY = Shape(layers=2, hidden=16, intermediate=32, heads=2, kv_heads=1)


def test_alpha_at_temperature_one_is_the_sum_of_the_smaller_probabilities() -> None:
    assert overlap(P.log(), Q.log()).tolist() == pytest.approx([0.7, 0.8])


def test_alpha_at_temperature_zero_counts_agreeing_argmaxes() -> None:
    assert agreement(P.log(), Q.log()).tolist() == [0.0, 1.0]


def test_alpha_does_not_depend_on_the_scale_of_unnormalised_logits() -> None:
    assert overlap(P.log() + 7, Q.log() - 3).tolist() == pytest.approx([0.7, 0.8])


def test_total_variation_is_one_minus_alpha() -> None:
    assert total_variation(P, Q).item() == pytest.approx(1 - 0.75)


def test_the_divergences_are_kl_and_two_total_variations() -> None:
    kl = (P * (P / Q).log()).sum(-1).mean()
    sharp = total_variation((P.log() / 0.3).softmax(-1), (Q.log() / 0.3).softmax(-1))
    assert divergences(P.log(), Q.log()).tolist() == pytest.approx([kl.item(), 0.25, sharp.item()])


def test_every_divergence_vanishes_for_the_targets_own_distribution() -> None:
    assert divergences(P.log(), P.log() + 5).tolist() == pytest.approx([0, 0, 0], abs=1e-6)


def test_training_starts_with_kl_alone_and_ends_with_total_variation() -> None:
    weights = torch.stack([blend(step / 600) for step in range(600)])
    assert torch.equal(weights[:200], torch.tensor([1.0, 0.0, 0.0]).expand(200, 3))
    assert torch.allclose(weights[300:], torch.tensor([0.1, 0.9, 0.9]))
    assert (weights[:, 1].diff() >= -1e-6).all()


def test_the_drafter_starts_as_the_first_layers_of_the_target() -> None:
    target = build(replace(TINY, layers=4), vocabulary=32, seed=0)
    drafter = initial_drafter(target, 2)
    assert drafter.config.num_hidden_layers == len(drafter.model.layers) == 2
    assert target.config.num_hidden_layers == 4
    for name, weight in drafter.state_dict().items():
        assert torch.equal(weight, target.state_dict()[name])
        assert weight.data_ptr() != target.state_dict()[name].data_ptr()


def test_a_greedy_continuation_is_the_argmax_of_a_plain_forward_pass() -> None:
    model = build(TINY, vocabulary=32, seed=0).eval()
    prompts = torch.tensor([[1, 2, 3], [4, 5, 6]])
    rows = continue_rows(model, prompts, 5, 0.0, torch.Generator())
    with torch.inference_mode():
        logits = model(input_ids=rows[:, :-1], use_cache=False).logits[:, 2:]
    assert torch.equal(rows[:, :3], prompts)
    assert torch.equal(rows[:, 3:], logits.argmax(-1))


def test_a_sampled_continuation_is_a_function_of_the_generator() -> None:
    model = build(TINY, vocabulary=32, seed=0).eval()
    prompts = torch.tensor([[1, 2, 3]])
    one, same, other = (
        continue_rows(model, prompts, 20, 1.0, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_held_out_loss_of_a_uniform_model_is_the_log_of_the_vocabulary() -> None:
    model = build(TINY, vocabulary=32, seed=0).eval()
    torch.nn.init.zeros_(model.model.embed_tokens.weight)
    tokens = torch.arange(1501) % 32
    loss = held_out_loss(model, tokens, text_bytes=3000)
    assert loss.nats_per_token == pytest.approx(3.4657, abs=1e-3)
    assert loss.bits_per_byte == pytest.approx(5 * 1500 / 3000, abs=1e-3)


def test_the_cost_ratio_restores_the_number_of_threads() -> None:
    model = build(TINY, vocabulary=32, seed=0).eval()
    threads = torch.get_num_threads()
    cost = step_cost(model, model, steps=3)
    assert torch.get_num_threads() == threads
    assert cost.c == pytest.approx(cost.drafter_ms / cost.target_ms)
    assert cost.target_ms > 0
