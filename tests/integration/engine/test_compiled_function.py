"""A compiled function returns the same as the function itself, for every way to call it."""

import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from specdec.engine.cpu.compiled_function import CompiledFunction, _Direct

pytestmark = [
    pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),  # PyTorch's compiler uses deprecated PyTorch calls
]


class Layers(nn.Module):
    """An embedding and a layer that also receives the positions."""

    def __init__(self, between: Callable[[Tensor], Tensor], output: Callable[[Tensor], BaseModelOutput]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.embedding = nn.Parameter(torch.randn(50, 8, generator=generator))
        self.linear = nn.Parameter(torch.randn(8, 8, generator=generator))
        self._between = between
        self._output = output

    def forward(self, input_ids: Tensor, position_ids: Tensor, scale: float) -> BaseModelOutput:
        """Return states [1, T, 8]."""
        states = self._between(self.embedding[input_ids] * scale)
        return self._output(states @ self.linear + position_ids[..., None])


def with_break(states: Tensor) -> Tensor:
    """End one graph and begin another."""
    torch._dynamo.graph_break()
    return states


def states_alone(states: Tensor) -> BaseModelOutput:
    """Return the states alone, like most architectures."""
    return BaseModelOutput(last_hidden_state=states)


def states_and_more(states: Tensor) -> BaseModelOutput:
    """Return the states and hidden states, like a model that is asked for both."""
    return BaseModelOutput(last_hidden_state=states, hidden_states=(states + 1.0,))


@pytest.mark.parametrize(
    ("between", "output", "direct"),
    [(nn.Identity(), states_alone, True), (with_break, states_alone, False), (nn.Identity(), states_and_more, True)],
    ids=["one graph", "two graphs", "two outputs"],
)
def test_every_pass_is_as_without_compilation(between: Any, output: Any, direct: bool) -> None:
    layers = Layers(between, output)
    compiled = CompiledFunction(layers.forward, {}, 1)
    with torch.inference_mode():
        for turn, count in enumerate((1, 5, 1, 8, 5, 1)):
            ids, places = torch.arange(turn, turn + count)[None], torch.arange(9, 9 + count)[None]
            given = {"input_ids": ids, "position_ids": places, "scale": 2.0}
            found, expected = compiled(**given), layers(**given)
            assert type(found) is type(expected)
            torch.testing.assert_close(dict(found), dict(expected))
    assert [isinstance(run, _Direct) for run in compiled._runs.values()] == [direct, direct]


def test_any_number_of_tensors_changes_from_call_to_call() -> None:
    scale = nn.Parameter(torch.randn(8, generator=torch.Generator().manual_seed(2)))

    def paired(states: Tensor, tokens: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        moved = states * scale + tokens[:, None]
        return moved, moved * positions[:, None]

    compiled = CompiledFunction(paired, {}, 0)
    with torch.inference_mode():
        for turn, count in enumerate((1, 5, 1, 8, 5, 1)):
            states, tokens = torch.full((count, 8), turn + 0.5), torch.arange(turn, turn + count)
            torch.testing.assert_close(
                compiled(states, tokens, positions=tokens + 3), paired(states, tokens, positions=tokens + 3)
            )
    assert all(isinstance(run, _Direct) for run in compiled._runs.values())
