"""Settings of every test run: property tests without a clock, kernels without a GPU, and the fixtures of all rooms."""

import os
import shutil

from hypothesis import settings

pytest_plugins = ["tests.integration.sessions.server"]

settings.register_profile("explore", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "explore")

if shutil.which("nvidia-smi") is None:
    os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton reads it when it is first imported, which transformers does
