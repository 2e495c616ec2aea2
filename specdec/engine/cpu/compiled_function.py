"""A function of tensors, compiled by PyTorch and called without its guards."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn.functional import linear
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from specdec.engine.cpu.joined_layers import multiply_once
from specdec.engine.cpu.product import MULTIPLY

_ALONE = "isolate_recompiles"
"""Option that separates compiled code from that of other models with this architecture; missing in older PyTorch."""

_Code = Callable[..., Sequence[Tensor]]
"""A compiled graph: takes all its inputs and returns its outputs."""


def compiler_options(device: torch.device) -> dict[str, Any]:
    """Options of PyTorch's compiler for passes on a device. A float that layers share becomes a constant from now on,
    not an input that every pass would convert to a tensor."""
    torch._dynamo.config.specialize_float = True
    return {
        # Without this, the compiled code would read the number of threads in every loop, and use one thread.
        "cpp.threads": torch.get_num_threads(),
        # The whole pass is C++, so other Python threads run meanwhile.
        "cpp_wrapper": device.type == "cpu",
        # Only the kernels are compiled with all optimizations, which would take long for the code that calls them.
        "cpp_wrapper_build_separate": True,
        # Shape checks take time in each pass, and the engine's check at load time compares the logits.
        "size_asserts": False,
    }


class CompiledFunction:
    """Callable that replaces a function of T packed tokens. It compiles at the first call with one token and at the
    first call with several.

    PyTorch compiles a function to code whose inputs are the tensors of the call and every weight. Before each call it
    would gather the weights from their modules, and check whether a weight or a setting has changed. Nothing changes
    them after the compilation, so the code is called directly with the weights that it was compiled for.
    """

    def __init__(self, function: Callable[..., Any], options: dict[str, Any], dim: int) -> None:
        """Replace a function.

        Args:
            function: returns tensors in any structure.
            options: options of PyTorch's compiler.
            dim: dimension of the first tensor among the function's arguments whose size is T.
        """
        self._function = function
        self._options = options
        self._dim = dim
        self._runs: dict[bool, Callable[..., Any]] = {}

    def __call__(self, *given: Any, **named: Any) -> Any:
        """Return what the function does. Only tensors may differ from call to call, and their sizes only by T."""
        count = next(each for each in (*given, *named.values()) if isinstance(each, Tensor)).shape[self._dim]
        run = self._runs.get(count == 1)
        if run is None:
            return self._compile(count, *given, **named)
        return run(count, *given, **named)

    def _compile(self, count: int, *given: Any, **named: Any) -> Any:
        """Compile and make the first call with one token, or with several."""
        graphs = _Graphs(self._options)
        alone: dict[str, Any] = {_ALONE: True} if _ALONE in signature(torch.compile).parameters else {}
        checked: Any = torch.compile(self._function, dynamic=True, backend=graphs, **alone)
        found = checked(*given, **named)
        direct = graphs.direct(count, (*given, *named.values()), found)
        self._runs[count == 1] = direct or (lambda _, *given, **named: checked(*given, **named))
        return found


class _Graphs:
    """Compiler backend for one kind of call, which keeps the compiled code."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._compiled: list[tuple[_Code, list[Any]]] = []
        self._outputs: Sequence[Tensor] = ()
        """Outputs of the first call, until `direct` has found their places."""

    def __call__(self, graph: fx.GraphModule, inputs: list[Any]) -> _Code:
        multiply_once(graph, (linear, *MULTIPLY))
        code: _Code = torch._inductor.compile(graph, inputs, options=self._options)
        self._compiled.append((code, inputs))

        def first_call(*given: Any) -> Sequence[Tensor]:
            self._outputs = code(*given)
            return self._outputs

        return first_call

    def direct(self, count: int, given: tuple[Any, ...], found: Any) -> "_Direct | None":
        """Direct access to the code of the call that returned `found`; None unless it is a single graph that computes
        all of it from the tensors and their number of tokens."""
        outputs, self._outputs = self._outputs, ()
        leaves, structure = tree_flatten(found)
        places = {id(each): index for index, each in enumerate(outputs)}
        if len(self._compiled) != 1 or any(id(each) not in places for each in leaves):
            return None
        code, inputs = self._compiled[0]
        weights, own = list[Any](inputs), list[tuple[int, int]]()
        sources = {id(each): source for source, each in enumerate(given, 1) if isinstance(each, Tensor)}
        for slot, each in enumerate(inputs):
            if id(each) in sources:
                own.append((slot, sources[id(each)]))
            elif not isinstance(each, Tensor):
                if each.node.hint != count:
                    return None
                own.append((slot, 0))
        for slot, _ in own:
            weights[slot] = None
        if not set(sources.values()) <= {source for _, source in own}:
            return None
        views = [each.view_as(each) for each in weights if each is not None]
        return _Direct(code, weights, views, own, [places[id(each)] for each in leaves], structure)


@dataclass(frozen=True, slots=True)
class _Direct:
    """Calls the code of a graph with the weights that it was compiled for."""

    code: _Code
    weights: list[Any]
    """Inputs of the code; None for inputs that change with each call."""
    views: list[Tensor]
    """A view of each weight. C++ would need the interpreter to release a tensor that only Python references; its view
    also references it."""
    own: list[tuple[int, int]]
    """(index, argument of `__call__`) of each input that changes."""
    results: list[int]
    """Indices of the results among the outputs of the code."""
    structure: TreeSpec
    """Structure of what the function returns."""

    def __call__(self, *given: Any, **named: Any) -> Any:
        """Call the code, given the number of tokens and the arguments of the function."""
        sources, inputs = (*given, *named.values()), self.weights.copy()
        for slot, source in self.own:
            inputs[slot] = sources[source]
        outputs = self.code(*inputs)
        return tree_unflatten([outputs[each] for each in self.results], self.structure)
