"""`python -m gateway --config FILE` serves; `python -m gateway check --config FILE` checks what it depends on."""

import os
import sys
from collections.abc import Sequence
from typing import Any

from gateway.config import GatewaySettings
from specdec.serving.command import ServiceCommand


def _keep_torch_out() -> None:
    """Make torch look absent: transformers would import it for a tokenizer, which takes seconds and much memory."""
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # it would say that torch is absent, in plain text
    modules: dict[str, Any] = sys.modules
    modules["torch"] = None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    _keep_torch_out()
    description = "The public door: OpenAI-compatible HTTP, and gRPC."
    return ServiceCommand("gateway", description, GatewaySettings, "gateway").run(arguments)


if __name__ == "__main__":
    sys.exit(main())
