"""The devices that tests of device code run on."""

from collections.abc import Iterator

import pytest
import torch

from tests.devices import NO_CUDA, use_device


@pytest.fixture(params=["stand-in", pytest.param("cuda", marks=NO_CUDA)])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """A device that is not the host."""
    with use_device(request.param) as device:
        yield device
