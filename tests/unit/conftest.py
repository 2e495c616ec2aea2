"""Where tensors may lie."""

from collections.abc import Iterator

import pytest
import torch

from tests.devices import usable

NO_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(params=["stand-in", pytest.param("cuda", marks=NO_CUDA)])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """One that is not the host."""
    with usable(request.param) as device:
        yield device
