"""The environment of vLLM does not grow its image by a tenth. CI has no time to build that image."""

import os

from images.sizes import grown, stated
from tests.vllm.server import HAS_VLLM, PYTHON

pytestmark = HAS_VLLM

REST = 601
"""Megabytes of the image outside the environment: Debian's packages, the code and the demo model."""


def test_the_image_with_vllm_has_not_grown_by_a_tenth() -> None:
    files = (os.path.join(folder, name) for folder, _, names in os.walk(PYTHON.parents[1]) for name in names)
    environment = round(sum(os.lstat(file).st_size for file in files) / 1e6)
    assert grown({"verifier-vllm": environment + REST}, stated()) == []
