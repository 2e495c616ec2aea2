"""How often code on another device makes the host wait: each is a look at a number, or a copy that is not left to run.

On CUDA PyTorch itself says so. On the stand-in it is told from the operations: those whose result or shape the host has
to know, those that take the host's own tensors across in passing, and copies.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.devices import STAND_IN

_aten = torch.ops.aten
_ASKING = (
    _aten._local_scalar_dense,
    _aten.equal,
    _aten.nonzero,
    _aten.masked_select,
    _aten.repeat_interleave,
    _aten._unique,
    _aten._unique2,
    _aten.unique_dim,
    _aten.unique_consecutive,
    _aten.bincount,
)
"""They cannot go on before the device has computed a number."""
_INDEXING = (_aten.index, _aten.index_put, _aten.index_put_, _aten._index_put_impl_)
_COPYING = (_aten._to_copy, _aten.copy_)


@contextmanager
def looks(device: torch.device) -> Iterator[list[str]]:
    """The waits for the device within, each by its name; complete at the end."""
    found: list[str] = []
    if device.type == STAND_IN.type:
        with _Looks(found):
            yield found
        return
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield found
    finally:
        torch.cuda.set_sync_debug_mode("default")
    found += [str(each.message) for each in caught if "synchroniz" in str(each.message)]


class _Looks(TorchDispatchMode):
    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self._found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _waits(func.overloadpacket, args, kwargs):
            self._found.append(str(func))
        return func(*args, **kwargs)


def _waits(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    tensors = [leaf for leaf in tree_leaves((args, dict(kwargs))) if isinstance(leaf, Tensor)]
    there = [_is_there(tensor) for tensor in tensors]
    if op in _COPYING:
        target = torch.device(kwargs["device"]).type == STAND_IN.type if kwargs.get("device") else there[0]
        across = target != there[-1]
        return across and not (target and (kwargs.get("non_blocking") or (op is _aten.copy_ and args[2:] == (True,))))
    if not any(there):
        return False
    if op in _INDEXING:
        indices = [index for index in args[1] if index is not None]
        masks = any(index.dtype in (torch.bool, torch.uint8) for index in indices)
        return masks or not all(map(_is_there, [*indices, *args[2:3]]))
    return op in _ASKING or (op is _aten.where and not all(there))


def _is_there(tensor: Tensor) -> bool:
    return tensor.device.type == STAND_IN.type
