"""The temporary folder of the tiny models that several tests share."""

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path


@cache
def root() -> Path:
    """Return a temporary folder for this run. It is deleted when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="specdec-conformance-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
