"""Which memory and passes a device has."""

from typing import Any

import torch

from specdec.engine.cpu.cpp_library import HostCode
from specdec.engine.cpu.operator import host_backend
from specdec.engine.cuda.backend import PagedBackend
from specdec.engine.kv.backend import OpenKvBackend


def kv_backend_for(device: torch.device, attention: HostCode = "auto") -> OpenKvBackend[Any]:
    """The backend for a model on that device: slabs on the host, pages on every other device.

    Raises:
        ModelRefused: `attention` asks for the host's operator, which cannot be had.
    """
    return host_backend(attention) if device.type == "cpu" else PagedBackend.on(device)
