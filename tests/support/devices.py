"""Devices other than the host: CUDA where available, and on every machine a stand-in that computes on the host.

On the stand-in an operation on tensors of two devices is an error, as on a real device, unless the host's tensor has no
dimensions. The stand-in shows how code handles devices, but not how a real device rounds.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

NO_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
STAND_IN = torch.device("lazy", 0)
"""Name of the stand-in: a device that PyTorch knows and nothing uses."""
_INDEXING = (torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default, torch.ops.aten._index_put_impl_.default)
"""Operations whose second argument, the indices, may be on the host."""


@contextmanager
def use_device(name: str) -> Iterator[torch.device]:
    """Make a device usable in the block: "stand-in", or a device name known to PyTorch."""
    if name != "stand-in":
        yield torch.device(name)
        return
    with _StandIn():
        torch._C._set_only_lift_cpu_tensors(True)  # so that the copy by torch.tensor(..., device=...) is seen
        try:
            yield STAND_IN
        finally:
            torch._C._set_only_lift_cpu_tensors(False)


class _Remote(Tensor):
    """A tensor on the stand-in device, with its data on the host."""

    numbers: Tensor

    @staticmethod
    def __new__(cls, numbers: Tensor) -> "_Remote":
        remote: _Remote = Tensor._make_wrapper_subclass(
            cls, numbers.shape, strides=numbers.stride(), dtype=numbers.dtype, device=STAND_IN
        )
        remote.numbers = numbers
        return remote

    def tolist(self) -> Any:
        """Return the numbers as lists, which PyTorch does not implement for wrapper tensors."""
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _StandIn(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run an operation on the host. The result is on the requested device, or on the device of the operands."""
    bound = [args[0], *args[2:]] if func in _INDEXING else args
    tensors = [leaf for leaf in tree_leaves((bound, dict(kwargs))) if isinstance(leaf, Tensor)]
    remote = any(isinstance(tensor, _Remote) for tensor in tensors)
    if (asked := kwargs.get("device")) is not None:
        remote = torch.device(asked).type == STAND_IN.type
        kwargs = {**kwargs, "device": torch.device("cpu")}
    elif remote and func is not torch.ops.aten.copy_.default:
        for tensor in tensors:
            if tensor.dim() and not isinstance(tensor, _Remote):
                raise RuntimeError(f"{func}: tensors of two devices, one of shape {tuple(tensor.shape)} on the host")
    args, kwargs = tree_map(lambda leaf: leaf.numbers if isinstance(leaf, _Remote) else leaf, (args, dict(kwargs)))
    return tree_map(lambda leaf: _Remote(leaf) if remote and _is_plain(leaf) else leaf, func(*args, **kwargs))


def _is_plain(leaf: object) -> bool:
    return isinstance(leaf, Tensor) and not isinstance(leaf, _Remote)
