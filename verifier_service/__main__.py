"""`python -m verifier_service --config FILE` serves; `python -m verifier_service check --config FILE` only checks."""

import asyncio
import sys
from collections.abc import Callable, Sequence

from specdec.serving.command import ServiceCommand
from verifier_service.config import VerifierSettings


async def _serve(settings: VerifierSettings, stop: asyncio.Event) -> None:
    from verifier_service.app import serve

    await serve(settings, stop)


async def _check(settings: VerifierSettings, write: Callable[[str], object]) -> bool:
    from verifier_service.check import check

    return await check(settings, write)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    description = "Hosts the target model and verifies drafts."
    return ServiceCommand("verifier", description, VerifierSettings, _serve, _check).run(arguments)


if __name__ == "__main__":
    sys.exit(main())
