"""Devices for tests of device code."""

from collections.abc import Iterator

import pytest
import torch

from tests.support.devices import NO_CUDA, use_device


@pytest.fixture(params=["stand-in", pytest.param("cuda", marks=NO_CUDA)])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """A device other than the host."""
    with use_device(request.param) as device:
        yield device
