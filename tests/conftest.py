"""How property tests run: without a clock, in CI with the same examples every time; and kernels, without a GPU."""

import os
import shutil

from hypothesis import settings

settings.register_profile("explore", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "explore")

if shutil.which("nvidia-smi") is None:
    os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton reads it when it is first imported, which transformers does
