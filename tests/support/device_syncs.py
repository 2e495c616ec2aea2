"""Count device syncs: operations for which the host waits until the device has computed a number or made a copy.

On CUDA PyTorch warns of each one. On the stand-in device they are recognised by the operation: the host must know its
result or shape, or it copies a tensor between the devices.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.support.devices import STAND_IN

_aten = torch.ops.aten
_READING = (
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
"""Operations that need a number from the device before the host can continue."""
_INDEXING = (_aten.index, _aten.index_put, _aten.index_put_, _aten._index_put_impl_)
_COPYING = (_aten._to_copy, _aten.copy_)


@contextmanager
def device_syncs(device: torch.device) -> Iterator[list[str]]:
    """Collect the names of the device syncs in the block. The list is complete when the block ends."""
    found: list[str] = []
    if device.type == STAND_IN.type:
        with _SyncCounter(found):
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


class _SyncCounter(TorchDispatchMode):
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
    on_device = [_is_on_device(tensor) for tensor in tensors]
    if op in _COPYING:
        target = torch.device(kwargs["device"]).type == STAND_IN.type if kwargs.get("device") else on_device[0]
        across = target != on_device[-1]
        return across and not (target and (kwargs.get("non_blocking") or (op is _aten.copy_ and args[2:] == (True,))))
    if not any(on_device):
        return False
    if op in _INDEXING:
        indices = [index for index in args[1] if index is not None]
        masks = any(index.dtype in (torch.bool, torch.uint8) for index in indices)
        return masks or not all(map(_is_on_device, [*indices, *args[2:3]]))
    return op in _READING or (op is _aten.where and not all(on_device))


def _is_on_device(tensor: Tensor) -> bool:
    return tensor.device.type == STAND_IN.type
