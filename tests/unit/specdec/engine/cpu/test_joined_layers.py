"""Layers with one input become one product in a compiled pass, with the same results as separate products."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.nn.functional import linear

from specdec.engine.cpu.joined_layers import JoinedLinear, LayerPart, join_layers, multiply_once


class Gate(nn.Module):
    """Two layers with one input, and one that is not joined with them."""

    def __init__(self, biases: tuple[bool, bool]) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(24, 40, bias=biases[0])
        self.up_proj = nn.Linear(24, 40, bias=biases[1])
        self.down_proj = nn.Linear(40, 24)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Map [..., 24] to [..., 24]."""
        gated: torch.Tensor = self.down_proj(self.gate_proj(states).sigmoid() * self.up_proj(states))
        return gated


@pytest.mark.parametrize("biased", [False, True])
def test_a_compiled_pass_multiplies_once_with_pytorchs_layers_of_one_input(biased: bool) -> None:
    model, states = Gate((biased, biased)).requires_grad_(False), torch.randn(1, 5, 24)
    expected, weight = model(states), model.up_proj.weight
    join_layers(model, JoinedLinear)
    assert isinstance(model.up_proj, LayerPart)
    assert torch.equal(model.up_proj.weight, weight)
    assert sum(each.numel() for each in model.parameters()) == 80 * 24 + 80 * biased + 40 * 24 + 24
    torch.testing.assert_close(model(states), expected, rtol=1e-5, atol=1e-6)
    counted = list[int]()

    def compiler(graph: fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
        multiply_once(graph, (linear,))
        counted.append(sum(node.target is linear for node in graph.graph.nodes))
        return graph.forward

    torch.testing.assert_close(torch.compile(model, backend=compiler)(states), expected, rtol=1e-5, atol=1e-6)
    assert counted == [2]


def test_layers_of_which_one_has_a_bias_stay_apart() -> None:
    model = Gate((True, False))
    join_layers(model, JoinedLinear)
    assert type(model.up_proj) is nn.Linear


def test_layers_that_do_not_fit_stay_apart() -> None:
    model = Gate((True, True))
    join_layers(model, JoinedLinear, lambda layers: layers[0].out_features > 40)
    assert type(model.up_proj) is nn.Linear
