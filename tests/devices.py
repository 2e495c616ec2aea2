"""Devices that are not the host: CUDA where there is one, and everywhere a stand-in that keeps its numbers here.

On the stand-in an operation on tensors of two devices is an error, as on a real one, unless the stranger is a number of
no dimensions. It shows what code does with devices; what a real one rounds otherwise, only that one shows.
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
"""A device that PyTorch knows by name and does not use."""
_INDEXING = (torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default, torch.ops.aten._index_put_impl_.default)
"""Their second argument, the indices, may lie on the host."""


@contextmanager
def usable(name: str) -> Iterator[torch.device]:
    """The device of that name, "stand-in" or PyTorch's own."""
    if name != "stand-in":
        yield torch.device(name)
        return
    with _StandIn():
        torch._C._set_only_lift_cpu_tensors(True)  # so that torch.tensor(..., device=...) is seen to move
        try:
            yield STAND_IN
        finally:
            torch._C._set_only_lift_cpu_tensors(False)


class _Remote(Tensor):
    """A tensor on the stand-in."""

    here: Tensor

    @staticmethod
    def __new__(cls, here: Tensor) -> "_Remote":
        remote: _Remote = Tensor._make_wrapper_subclass(
            cls, here.shape, strides=here.stride(), dtype=here.dtype, device=STAND_IN
        )
        remote.here = here
        return remote

    def tolist(self) -> Any:
        """PyTorch does not offer this for wrappers."""
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _StandIn(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run an operation here, and say that its result is where its operands are, or where it was asked for."""
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
    args, kwargs = tree_map(lambda leaf: leaf.here if isinstance(leaf, _Remote) else leaf, (args, dict(kwargs)))
    return tree_map(lambda leaf: _Remote(leaf) if remote and _is_plain(leaf) else leaf, func(*args, **kwargs))


def _is_plain(leaf: object) -> bool:
    return isinstance(leaf, Tensor) and not isinstance(leaf, _Remote)
