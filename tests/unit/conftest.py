"""Where tensors may lie."""

from collections.abc import Iterator

import pytest
import torch

from tests.devices import NO_CUDA, usable


@pytest.fixture(params=["stand-in", pytest.param("cuda", marks=NO_CUDA)])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """One that is not the host."""
    with usable(request.param) as device:
        yield device
