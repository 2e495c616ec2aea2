"""Both sides draw with shared noise: agreement is likely, and the target's draws are its own."""

import pytest
import torch
from torch import Tensor

from specdec.rules import coupling
from specdec.rules.coupling import LIKELY, choose, coupled_on_host, draw, draw_on_device
from specdec.rules.rng import coordinates, exponential_on_host, rest_noise

COUNT = 20_000


def repeated(*mass: float) -> Tensor:
    return torch.tensor(mass).expand(COUNT, -1)


def ids(p: Tensor) -> Tensor:
    return torch.arange(p.shape[1]).expand_as(p)


def words(seed: int, position: int) -> Tensor:
    return coordinates([seed], [position])


def test_the_winner_has_the_least_noise_over_probability() -> None:
    p = torch.tensor([[0.2, 0.0, 0.5, 0.3]], dtype=torch.float64)
    noise = exponential_on_host(words(7, 11), torch.zeros(4, dtype=torch.int64), torch.arange(4))
    arrival = [float(e / mass) if mass else float("inf") for e, mass in zip(noise, p[0], strict=True)]
    assert int(choose(p, ids(p), [7], [11])) == arrival.index(min(arrival))


def test_a_choice_is_an_exact_draw() -> None:
    """20,000 draws; frequencies within five standard errors."""
    p = repeated(0.1, 0.0, 0.6, 0.3)
    observed = torch.bincount(choose(p, ids(p), range(COUNT), [4] * COUNT), minlength=4) / COUNT
    assert observed[1] == 0
    torch.testing.assert_close(observed, p[0], atol=5 * 0.5 / COUNT**0.5, rtol=0)


def test_both_sides_agree_as_often_as_the_theory_says() -> None:
    """Pr[x = y] = Σᵢ 1 / Σⱼ max(pⱼ/pᵢ, qⱼ/qᵢ), at least (1 - TV)/(1 + TV); within five standard errors."""
    p, q = repeated(0.5, 0.3, 0.2), repeated(0.2, 0.3, 0.5)
    seeds, positions = range(COUNT), [9] * COUNT
    agreed = float((choose(p, ids(p), seeds, positions) == choose(q, ids(q), seeds, positions)).double().mean())
    theory = sum(1 / float(torch.maximum(p[0] / p[0, i], q[0] / q[0, i]).sum()) for i in range(3))
    assert agreed == pytest.approx(theory, abs=5 * 0.5 / COUNT**0.5)
    distance = float((p[0] - q[0]).abs().sum()) / 2
    assert theory >= (1 - distance) / (1 + distance) - 1e-6


def test_a_drafter_with_part_of_the_vocabulary_uses_the_same_noise() -> None:
    p = torch.tensor([[0.0, 0.0, 0.4, 0.6]])
    part = p[:, 2:]
    for seed in range(50):
        assert torch.equal(choose(p, ids(p), [seed], [3]), choose(part, torch.tensor([[2, 3]]), [seed], [3]))


def test_scaling_the_probabilities_changes_nothing() -> None:
    p = repeated(0.5, 0.3, 0.2)
    assert torch.equal(choose(p, ids(p), range(COUNT), [1] * COUNT), choose(2 * p, ids(p), range(COUNT), [1] * COUNT))


def test_where_every_token_is_likely_the_target_races_as_a_drafter_does() -> None:
    p = repeated(0.1, 0.0, 0.6, 0.3)
    assert torch.equal(draw(p, range(COUNT), [4] * COUNT), choose(p, ids(p), range(COUNT), [4] * COUNT))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_unlikely_tokens_race_as_one_and_the_draw_stays_exact(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two likely tokens and three that are not; 20,000 draws, frequencies within five standard errors."""
    monkeypatch.setattr(coupling, "LIKELY", 0.25)
    p = torch.tensor([0.1, 0.3, 0.0, 0.2, 0.25, 0.15], dtype=dtype).expand(COUNT, -1)
    observed = torch.bincount(draw(p, range(COUNT), [4] * COUNT), minlength=6) / COUNT
    assert observed[2] == 0
    torch.testing.assert_close(observed, p[0].float(), atol=5 * 0.5 / COUNT**0.5, rtol=0)


def test_the_decision_is_the_first_arrival_and_then_the_rests_inverse_cdf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses the exact laws of the noise that makes the draw exact: rate Σp for the rest, and p/Σp inside it."""
    monkeypatch.setattr(coupling, "LIKELY", 0.25)
    p = torch.tensor([[0.1, 0.3, 0.2, 0.25, 0.15]], dtype=torch.float64)
    rest, likely = [0, 2, 4], [1, 3]
    for seed in range(300):
        noise = exponential_on_host(words(seed, 6), torch.zeros(5, dtype=torch.int64), torch.arange(5)) / p[0]
        exponential, u = rest_noise(words(seed, 6))
        first = min(likely, key=lambda token: float(noise[token]))
        inside = next(token for token in rest if float(p[0, [i for i in rest if i <= token]].sum()) > float(u) * 0.45)
        expected = inside if float(exponential) / 0.45 < float(noise[first]) else first
        assert int(draw(p, [seed], [6])) == expected


def test_a_distribution_without_a_likely_token_is_drawn_from_as_a_whole() -> None:
    p = torch.full((50, 40_000), 1 / 40_000)
    drawn = draw(p, range(50), [3] * 50)
    assert len(set(drawn.tolist())) > 45
    assert float(p.max()) < LIKELY


def test_the_operations_for_a_device_draw_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coupling, "LIKELY", 0.05)
    p = torch.rand(500, 40, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    p /= p.sum(-1, keepdim=True)
    whole = coordinates(range(500), [8] * 500)
    assert torch.equal(draw_on_device(p, whole, *rest_noise(whole)), draw(p, range(500), [8] * 500))


def test_the_targets_draws_go_on_while_the_draft_agrees() -> None:
    p = torch.rand(4, 10, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    plain = [int(draw(p[[step]], [5], [20 + step])) for step in range(4)]
    wrong = (plain[1] + 1) % 10
    assert coupled_on_host(p, [plain[:3]], [5], [20]) == [tuple(plain)]
    assert coupled_on_host(p, [[plain[0], wrong, plain[2]]], [5], [20]) == [tuple(plain[:2])]
    assert coupled_on_host(p[:1], [[]], [5], [20]) == [tuple(plain[:1])]


def test_a_batch_of_no_drafts_is_empty() -> None:
    assert coupled_on_host(torch.zeros(0, 4), [], [], []) == []
