"""Triton's kernels on a GPU if there is one, otherwise in Triton's interpreter."""

import pytest
import torch

from specdec.engine.cuda.paged_step import Kernels
from tests.support.kv_backends import triton_kernels


@pytest.fixture(scope="session")
def triton() -> Kernels:
    """The kernels of the product."""
    return triton_kernels()


@pytest.fixture(scope="session")
def kernel_device() -> torch.device:
    """The device of the kernels."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
