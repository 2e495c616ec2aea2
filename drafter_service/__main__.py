"""`python -m drafter_service --config FILE` serves; `python -m drafter_service check --config FILE` checks."""

import asyncio
import sys
from collections.abc import Callable, Sequence

from drafter_service.config import DrafterSettings
from specdec.serving.command import ServiceCommand


async def _serve(settings: DrafterSettings, stop: asyncio.Event) -> None:
    from drafter_service.app import serve

    await serve(settings, stop)


async def _check(settings: DrafterSettings, write: Callable[[str], object]) -> bool:
    from drafter_service.check import check

    return check(settings, write)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    return ServiceCommand("drafter", "Drafts tokens for verifiers to check.", DrafterSettings, _serve, _check).run(
        arguments
    )


if __name__ == "__main__":
    sys.exit(main())
