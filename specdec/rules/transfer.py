"""Small tensors between the host and another device, all in one piece: one copy there, one back.

Only the way back waits for the device. On the host both are nothing.
"""

import torch
from torch import Tensor


def moved(device: torch.device, *tensors: Tensor) -> list[Tensor]:
    """Host tensors on the device, by one copy that nothing waits for.

    Args:
        device: where to.
        tensors: int64 or float64, of any shapes.
    """
    if device.type == "cpu":
        return list(tensors)
    words = _words(tensors)
    if device.type == "cuda":
        words = words.pin_memory()
    return _parts(words.to(device, non_blocking=True), tensors)


def fetched(*tensors: Tensor) -> list[Tensor]:
    """Tensors of one device, int64 or float64, on the host, by one copy; it waits until they are computed."""
    if tensors[0].is_cpu:
        return list(tensors)
    return _parts(_words(tensors).cpu(), tensors)


def _words(tensors: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([tensor.reshape(-1).view(torch.int64) for tensor in tensors])


def _parts(words: Tensor, like: tuple[Tensor, ...]) -> list[Tensor]:
    parts = torch.split(words, [tensor.numel() for tensor in like])
    return [part.view(tensor.dtype).view(tensor.shape) for part, tensor in zip(parts, like, strict=True)]
