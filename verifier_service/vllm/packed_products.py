"""Matrix products with float32 weights on a CPU by the operator of `native`, registered as a quantization in vLLM.

A quantization in vLLM selects the method that multiplies with each layer's weights. This one does not change weights.
It stores them in the order in which the operator reads them, and the operator is faster than vLLM's own products.
"""

from typing import Any

import torch
from torch.nn.functional import linear
from typing_extensions import override
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization import register_quantization_config
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, UnquantizedEmbeddingMethod

from specdec.engine.cpu.product import PackedLinear
from specdec.errors import InternalError
from verifier_service.vllm.interfaces import PACKED

_PROBES = 3
"""Number of random input rows on which packed and plain weights are compared."""
_TOLERANCE = 1e-4
"""Largest allowed difference, relative to the largest output."""


class PackedProducts(QuantizationConfig):
    """Quantization config for vLLM, without options."""

    @override
    def get_name(self) -> Any:
        return PACKED

    @override
    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        return [torch.float32]

    @classmethod
    @override
    def get_min_capability(cls) -> int:
        return -1  # no GPU needed

    @staticmethod
    @override
    def get_config_filenames() -> list[str]:
        return []

    @classmethod
    @override
    def from_config(cls, config: dict[str, Any]) -> "PackedProducts":
        return cls()

    @override
    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> Any:
        if isinstance(layer, LinearBase):
            return _PackedLayer()
        return _PackedHead() if isinstance(layer, ParallelLMHead) else None


def register() -> None:
    """Register the quantization with vLLM in this process."""
    register_quantization_config(PACKED)(PackedProducts)


class _PackedLayer(UnquantizedLinearMethod):
    """Method of a linear layer, which keeps only the packed weights."""

    @override
    def process_weights_after_loading(self, layer: Any) -> None:
        if getattr(layer, "_cpu_skip_gemm_dispatch", False):  # a model in vLLM that reads the weights directly
            super().process_weights_after_loading(layer)
            return
        layer.packed = pack(layer.weight)
        layer.weight = torch.nn.Parameter(torch.empty(0), requires_grad=False)

    @override
    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return multiplied(layer.packed, x, bias) if hasattr(layer, "packed") else super().apply(layer, x, bias)


class _PackedHead(UnquantizedEmbeddingMethod):
    """Method of the output head. It keeps the plain weights, which may be shared with the embedding."""

    @override
    def process_weights_after_loading(self, layer: Any) -> None:
        layer.packed = pack(layer.weight)

    @override
    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return multiplied(layer.packed, x, bias)


def pack(weight: torch.Tensor) -> PackedLinear:
    """Pack weights [outputs, inputs] for the operator.

    Raises:
        InternalError: the operator's products differ from PyTorch's.
    """
    packed = PackedLinear(weight)
    probes = torch.randn(_PROBES, weight.shape[1], generator=torch.Generator().manual_seed(0))
    wanted, found = linear(probes, weight.detach()), packed(probes)
    if not (found - wanted).abs().max() <= _TOLERANCE * wanted.abs().max():
        raise InternalError("the operator of products gives others than PyTorch; `model.products: torch` leaves it out")
    return packed


def multiplied(packed: PackedLinear, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Multiply by packed weights and add the bias: [..., inputs] -> [..., outputs]."""
    out: torch.Tensor = packed(x)
    return out if bias is None else out + bias
