"""Which place a device gets: slabs on the host, pages on everything else."""

from typing import Any

import torch

from specdec.engine.host.backend import open_host
from specdec.engine.kv_backend import Open


def place_for(device: torch.device) -> Open[Any]:
    """The place for a model on that device."""
    if device.type == "cpu":
        return open_host
    from specdec.engine.paged.backend import Paged

    return Paged.on(device)
