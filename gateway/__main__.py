"""`python -m gateway --config FILE` serves; `python -m gateway check --config FILE` checks what it depends on."""

import sys
from collections.abc import Sequence

from gateway.config import GatewaySettings
from gateway.text.without_torch import keep_torch_out
from specdec.serving.command import ServiceCommand


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    keep_torch_out()
    description = "The public door: OpenAI-compatible HTTP, and gRPC."
    return ServiceCommand("gateway", description, GatewaySettings, "gateway").run(arguments)


if __name__ == "__main__":
    sys.exit(main())
