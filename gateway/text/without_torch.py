"""Keeps torch out of the gateway's process, for which its tokenizers have no use."""

import os
import sys
from typing import Any


def keep_torch_out() -> None:
    """Make torch look absent: transformers would import it for a tokenizer, which takes seconds and much memory."""
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # it would say that torch is absent, in plain text
    modules: dict[str, Any] = sys.modules
    modules["torch"] = None
