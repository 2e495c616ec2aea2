"""Join linear layers that have the same input, such as queries, keys and values, into one product."""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any, Protocol

import torch
from torch import Tensor, fx, nn
from torch.nn.functional import linear

_TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names of layers that have the same input in most architectures. If the inputs differ, results are right, but slow."""


class JoinedLayer(Protocol):
    """A module that replaces several layers."""

    in_features: int

    @property
    def weight(self) -> Tensor:
        """The original weights [outputs, inputs]."""

    def __call__(self, hidden: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs]"""

    def part(self, hidden: Tensor, outputs: slice) -> Tensor:
        """Compute only the given outputs."""


_Join = Callable[[Tensor, Tensor | None], JoinedLayer]


class JoinedLinear(nn.Linear):
    """A PyTorch linear layer that replaces several."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """`weight` [outputs, inputs] and `bias` [outputs] are used without a copy."""
        with torch.device("meta"):
            super().__init__(weight.shape[1], weight.shape[0], bias is not None)
        self.weight = nn.Parameter(weight, requires_grad=False)
        if bias is not None:
            self.bias = nn.Parameter(bias, requires_grad=False)

    def part(self, hidden: Tensor, outputs: slice) -> Tensor:
        """Compute only the given outputs."""
        return linear(hidden, self.weight[outputs], None if self.bias is None else self.bias[outputs])


class LayerPart(nn.Module):
    """A linear layer whose weights are part of a joined layer.

    A compiled pass multiplies with all weights of the joined layer at once: each part computes the same product, and
    `multiply_once` removes the duplicates.
    """

    def __init__(self, whole: JoinedLayer, first: int, outputs: int) -> None:
        """Take `outputs` outputs of `whole`, from `first` on."""
        super().__init__()
        self.whole = whole
        self.out_features, self.in_features = outputs, whole.in_features
        self._outputs = slice(first, first + outputs)

    @property
    def weight(self) -> Tensor:
        """The original weights [outputs, inputs]."""
        return self.whole.weight[self._outputs]

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs]"""
        if torch.compiler.is_compiling():
            return self.whole(hidden)[..., self._outputs]
        return self.whole.part(hidden, self._outputs)


def join_layers(model: nn.Module, join: _Join, fit: Callable[[Sequence[nn.Linear]], bool] = lambda _: True) -> None:
    """Replace layers that have the same input and that `fit` accepts by one layer, made by `join`."""
    for parent in list(model.modules()):
        for names in _TOGETHER:
            layers = [each for name in names if type(each := getattr(parent, name, None)) is nn.Linear]
            if len(layers) == len(names) and _alike(layers) and fit(layers):
                _replace(parent, names, layers, join)


def multiply_once(graph: fx.GraphModule, products: Iterable[Any]) -> None:
    """Replace repeated products of the same states with the same weights by the first of them.

    `products` are the functions that multiply.
    """
    kinds, firsts = set(products), dict[Any, fx.Node]()
    for node in list(graph.graph.nodes):
        if node.target in kinds:
            first = firsts.setdefault((node.target, node.args, tuple(node.kwargs.items())), node)
            if first is not node:
                node.replace_all_uses_with(first)
                graph.graph.erase_node(node)
    graph.recompile()


def _alike(layers: Sequence[nn.Linear]) -> bool:
    """Whether the layers agree in number of inputs, in dtype and device of the weights, and in having a bias."""
    kinds = {(each.in_features, each.weight.dtype, each.weight.device, each.bias is None) for each in layers}
    return len(kinds) == 1


def _replace(parent: nn.Module, names: Sequence[str], layers: Sequence[nn.Linear], join: _Join) -> None:
    biases: list[Tensor] = [each.bias.detach() for each in layers if each.bias is not None]
    weights: list[Tensor] = [each.weight.detach() for each in layers]
    whole = join(torch.cat(weights), torch.cat(biases) if biases else None)
    firsts = accumulate((each.out_features for each in layers[:-1]), initial=0)
    for name, first, each in zip(names, firsts, layers, strict=True):
        setattr(parent, name, LayerPart(whole, first, each.out_features))
