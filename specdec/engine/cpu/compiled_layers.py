"""A decoder's layers, compiled by PyTorch and called without its guards."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.functional import linear

from specdec.engine.cpu.joined_layers import multiply_once
from specdec.engine.cpu.product import MULTIPLY

_ALONE = "isolate_recompiles"
"""Option that separates compiled code from that of other models with this architecture; missing in older PyTorch."""

_Code = Callable[..., Sequence[Tensor]]
"""A compiled graph: takes all its inputs and returns its outputs."""
_STATES, _TAPPED = "last_hidden_state", "hidden_states"
"""Names of the outputs that a pass may have: the last layer's states, and a tuple of other states."""


class CompiledLayers:
    """Callable that replaces a model's `forward`. It compiles at the first pass over one token and at the first pass
    over several.

    PyTorch compiles a pass to code whose inputs are ids, places and every weight. Before each pass it would gather the
    weights from their modules, and check whether a weight or a setting has changed. Nothing changes them after the
    compilation, so the code is called directly with the weights that it was compiled for.
    """

    def __init__(self, layers: nn.Module, options: dict[str, Any]) -> None:
        """`options` are options of PyTorch's compiler."""
        self._forward = layers.forward
        self._options = options
        self._runs: dict[bool, Callable[[Tensor, Tensor], Any]] = {}

    def __call__(self, input_ids: Tensor, position_ids: Tensor, **rest: Any) -> Any:
        """Run a pass like `forward` of transformers, ids and places [1, T]; `rest` must be the same in every pass."""
        single = input_ids.shape[1] == 1
        if single not in self._runs:
            return self._compile(single, input_ids, position_ids, rest)
        return self._runs[single](input_ids, position_ids)

    def _compile(self, single: bool, ids: Tensor, places: Tensor, rest: dict[str, Any]) -> Any:
        """Compile and run the first pass over one token, or over several."""
        graphs = _Graphs(self._options)
        alone: dict[str, Any] = {_ALONE: True} if _ALONE in signature(torch.compile).parameters else {}
        checked: Any = torch.compile(self._forward, dynamic=True, backend=graphs, **alone)

        def run(ids: Tensor, places: Tensor) -> Any:
            return checked(input_ids=ids, position_ids=places, **rest)

        found = run(ids, places)
        self._runs[single] = graphs.direct(ids, places, found) or run
        return found


class _Graphs:
    """Compiler backend for one kind of pass, which keeps the compiled code."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._compiled: list[tuple[_Code, list[Any]]] = []
        self._outputs: Sequence[Tensor] = ()
        """Outputs of the first pass, until `direct` has found their places."""

    def __call__(self, graph: fx.GraphModule, inputs: list[Any]) -> _Code:
        multiply_once(graph, (linear, *MULTIPLY))
        code: _Code = torch._inductor.compile(graph, inputs, options=self._options)
        self._compiled.append((code, inputs))

        def first_pass(*given: Any) -> Sequence[Tensor]:
            self._outputs = code(*given)
            return self._outputs

        return first_pass

    def direct(self, ids: Tensor, places: Tensor, found: Any) -> "_Direct | None":
        """Direct access to the code of the pass over `ids` that returned `found`; None unless it is a single graph."""
        outputs, self._outputs = self._outputs, ()
        returned = _returned(found, outputs) if len(self._compiled) == 1 else None
        if returned is None:
            return None
        code, inputs = self._compiled[0]
        weights, own = list[Any](inputs), list[tuple[int, int]]()
        for slot, each in enumerate(inputs):
            if each is ids or each is places:
                own.append((slot, 0 if each is ids else 1))
            elif not isinstance(each, Tensor):
                if each.node.hint != ids.shape[1]:  # the only number that differs from pass to pass
                    return None
                own.append((slot, 2))
        for slot, _ in own:
            weights[slot] = None
        if not {0, 1} <= {which for _, which in own}:
            return None
        return _Direct(code, weights, own, type(found), *returned)


def _returned(found: Any, outputs: Sequence[Tensor]) -> tuple[int, tuple[int, ...] | None] | None:
    """Indices of a pass's results among the outputs: the fields `last` and `taps` of `_Direct`; None if any result is
    not an output."""
    if not {_STATES} <= set(found) <= {_STATES, _TAPPED}:
        return None
    places = {id(each): index for index, each in enumerate(outputs)}
    tapped = found[_TAPPED] if _TAPPED in set(found) else None
    if any(id(each) not in places for each in (found[_STATES], *(tapped or ()))):
        return None
    return places[id(found[_STATES])], None if tapped is None else tuple(places[id(each)] for each in tapped)


@dataclass(frozen=True, slots=True)
class _Direct:
    """Calls the code of a graph with the weights that it was compiled for."""

    code: _Code
    weights: list[Any]
    """Inputs of the code; None for inputs that change with each pass."""
    own: list[tuple[int, int]]
    """(index, source) of each input that changes: source is 0 for ids, 1 for places, 2 for the number of tokens."""
    kind: type
    """Type that transformers returns."""
    last: int
    """Index of the last layer's states among the outputs of the code."""
    taps: tuple[int, ...] | None
    """Indices of the other states that the pass returns; None if it returns none."""

    def __call__(self, ids: Tensor, places: Tensor) -> Any:
        given, inputs = (ids, places, ids.shape[1]), self.weights.copy()
        for slot, which in self.own:
            inputs[slot] = given[which]
        outputs = self.code(*inputs)
        if self.taps is None:
            return self.kind(last_hidden_state=outputs[self.last])
        return self.kind(last_hidden_state=outputs[self.last], hidden_states=tuple(outputs[each] for each in self.taps))
