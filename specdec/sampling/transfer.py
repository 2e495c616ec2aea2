"""Copy several small tensors between the host and a device in one transfer per direction.

Only the copy to the host waits for the device. If the tensors are used on the host, both functions do nothing.
"""

import torch
from torch import Tensor


def to_device(device: torch.device, *tensors: Tensor) -> list[Tensor]:
    """Copy int64 or float64 tensors from the host to the device in one asynchronous copy."""
    if device.type == "cpu":
        return list(tensors)
    words = _words(tensors)
    if device.type == "cuda":
        words = words.pin_memory()
    return _parts(words.to(device, non_blocking=True), tensors)


def to_host(*tensors: Tensor) -> list[Tensor]:
    """Copy int64 or float64 tensors from one device to the host in one copy; wait until they are computed."""
    if tensors[0].is_cpu:
        return list(tensors)
    return _parts(_words(tensors).cpu(), tensors)


def _words(tensors: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([tensor.reshape(-1).view(torch.int64) for tensor in tensors])


def _parts(words: Tensor, like: tuple[Tensor, ...]) -> list[Tensor]:
    parts = torch.split(words, [tensor.numel() for tensor in like])
    return [part.view(tensor.dtype).view(tensor.shape) for part, tensor in zip(parts, like, strict=True)]
