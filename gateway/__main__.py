"""`python -m gateway --config FILE` serves; `python -m gateway check --config FILE` checks what it depends on."""

import asyncio
import sys
from collections.abc import Callable, Sequence
from typing import Any

from gateway.config import GatewaySettings
from specdec.serving.command import ServiceCommand


def _keep_torch_out() -> None:
    """Make torch look absent: transformers would import it for a tokenizer, which takes seconds and much memory."""
    modules: dict[str, Any] = sys.modules
    modules["torch"] = None


async def _serve(settings: GatewaySettings, stop: asyncio.Event) -> None:
    from gateway.app import serve

    await serve(settings, stop)


async def _check(settings: GatewaySettings, write: Callable[[str], object]) -> bool:
    from gateway.check import check

    return await check(settings, write)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    _keep_torch_out()
    description = "The public door: OpenAI-compatible HTTP, and gRPC."
    return ServiceCommand("gateway", description, GatewaySettings, _serve, _check).run(arguments)


if __name__ == "__main__":
    sys.exit(main())
