"""Products with the weights of linear layers on the host, by `host_product.cpp` instead of PyTorch.

The weights are stored once, in the order in which the operator reads them. The result of a token does not depend on the
other tokens of the pass.
"""

import logging
from collections import defaultdict
from collections.abc import Sequence
from ctypes import CDLL, c_int64
from functools import cache
from pathlib import Path
from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from specdec.engine.cpu.cpp_library import SOURCES, TORCH_FLAGS, HostCode, LibraryMissing, load_library
from specdec.engine.cpu.joined_layers import join_layers
from specdec.errors import ModelRefused

_log = logging.getLogger(__name__)


def load_products(folder: Path = SOURCES) -> CDLL:
    """Load and register the operator; it is built from `folder` unless it is cached.

    Raises:
        LibraryMissing: the operator is not available on this machine.
    """
    library = load_library(folder / "host_product.cpp", [folder / "lanes.h"], TORCH_FLAGS)
    library.panel_width.argtypes, library.panel_width.restype = (), c_int64
    library.serve.argtypes, library.serve.restype = (), None
    library.serve()
    return library


_library = cache(load_products)


def _panel_width() -> int:
    """Number of outputs in a panel."""
    width: int = _library().panel_width()
    return width


torch.library.define("specdec::multiply", "(Tensor input, Tensor panels, Tensor? bias, int outputs) -> Tensor")


@torch.library.register_fake("specdec::multiply")  # type: ignore[untyped-decorator]
def _shape(given: Tensor, _panels: Tensor, _bias: Tensor | None, outputs: int) -> Tensor:
    return given.new_empty(*given.shape[:-1], outputs)


MULTIPLY = (torch.ops.specdec.multiply, torch.ops.specdec.multiply.default)
"""Names of the operator in the graph of a pass."""


class PackedLinear(nn.Module):
    """A linear layer whose weights are packed for the operator."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """`weight` [outputs, inputs] and `bias` [outputs] are float32 on the host; both are copied.

        Raises:
            LibraryMissing: the operator is not available on this machine.
        """
        super().__init__()
        self.out_features, self.in_features = weight.shape
        width = _panel_width()
        missing = -self.out_features % width
        rows = pad(weight.detach(), (0, 0, 0, missing)) if missing else weight.detach()  # padding by 0 rows also copies
        short, order = rows.bfloat16(), torch.arange(width)
        if torch.equal(short.float(), rows):
            rows, order = short, order.view(2, -1).T.flatten()  # the two vectors of a panel are interleaved
        self.panels = nn.Buffer(rows.view(-1, width, self.in_features)[:, order].transpose(1, 2).contiguous())
        """[panels, inputs, width]: bfloat16 if that changes no weight, to read less memory; else float32."""
        self.columns = nn.Buffer(order.argsort())
        """Column of each output within a panel [width]."""
        self.bias = None if bias is None else nn.Buffer(pad(bias.detach(), (0, missing)))
        """[outputs of all panels]"""

    @property
    def weight(self) -> Tensor:
        """The original weights [outputs, inputs], unpacked at each access."""
        rows = self.panels[:, :, self.columns].transpose(1, 2).reshape(-1, self.in_features)
        return rows[: self.out_features].float()

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs]"""
        out: Tensor = torch.ops.specdec.multiply(hidden, self.panels, self.bias, self.out_features)
        return out

    def part(self, hidden: Tensor, outputs: slice) -> Tensor:
        """Compute only the given outputs, which must be whole panels."""
        panels = self.panels[outputs.start // _panel_width() : outputs.stop // _panel_width()]
        bias = None if self.bias is None else self.bias[outputs]
        out: Tensor = torch.ops.specdec.multiply(hidden, panels, bias, outputs.stop - outputs.start)
        return out


class PackedEmbedding(nn.Module):
    """The embedding of a model that ties it to the head, read from the head's panels."""

    def __init__(self, head: PackedLinear) -> None:
        super().__init__()
        self._panels = head.panels
        self._columns = head.columns

    def forward(self, ids: Tensor) -> Tensor:
        """[...] -> [..., hidden]"""
        width = len(self._columns)
        return self._panels[ids // width, :, self._columns[ids % width]].float()


def has_operator(products: HostCode) -> bool:
    """Whether `products` allows the operator and it is available; logs the reason if it is not available.

    Raises:
        ModelRefused: `products` requires the operator, which is not available; the message gives the reason.
    """
    if products == "torch":
        return False
    try:
        _library()
    except LibraryMissing as missing:
        if products == "operator":
            raise ModelRefused(f"model.products is `operator`, which cannot be had: {missing}") from None
        _log.info("products are PyTorch's, because their operator cannot be had: %s", missing)
        return False
    return True


def pack_products(model: nn.Module, products: HostCode) -> None:
    """Replace the linear layers of `model` that the operator supports, if `products` allows the operator.

    Raises:
        ModelRefused: `products` requires the operator, which is not available; the message gives the reason.
    """
    if has_operator(products):
        _pack(model)


_Places = list[tuple[nn.Module, str]]
"""Parent modules of a layer, each with its name for the layer."""


def _fit(layers: Sequence[nn.Linear]) -> bool:
    """Whether layers can be joined: all have whole panels, and all or none are exact in bfloat16."""
    if not all(_is_packable(each) and each.out_features % _panel_width() == 0 for each in layers):
        return False
    return len({torch.equal(each.weight.bfloat16().float(), each.weight) for each in layers}) == 1


def _is_packable(layer: nn.Module | None) -> TypeGuard[nn.Linear]:
    return type(layer) is nn.Linear and layer.weight.dtype == torch.float32 and layer.weight.device.type == "cpu"


def _pack(model: nn.Module) -> None:
    join_layers(model, PackedLinear, _fit)
    layers, embeddings = defaultdict[nn.Linear, _Places](list), defaultdict[Tensor, _Places](list)
    for parent in model.modules():
        for name, child in parent.named_children():
            if _is_packable(child):
                layers[child].append((parent, name))
            elif type(child) is nn.Embedding:
                embeddings[child.weight].append((parent, name))
    while layers:  # one after the other, so that few weights exist twice
        linear, places = layers.popitem()
        packed = PackedLinear(linear.weight, linear.bias)
        for parent, name in places:
            setattr(parent, name, packed)
        for parent, name in embeddings.pop(linear.weight, ()):
            setattr(parent, name, PackedEmbedding(packed))
    _return_memory()


def _return_memory() -> None:
    """Return unused memory of the C library to the system."""
    trim = getattr(CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
