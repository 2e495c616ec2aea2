"""The command `python -m gateway.ratio_controller [serve|check] --config FILE`."""

import asyncio
import sys
from collections.abc import Callable, Sequence

from gateway.ratio_controller.config import RatioSettings
from specdec.serving.command import ServiceCommand


async def _serve(settings: RatioSettings, stop: asyncio.Event) -> None:
    from gateway.ratio_controller.app import serve

    await serve(settings, stop)


async def _check(settings: RatioSettings, write: Callable[[str], object]) -> bool:
    from gateway.ratio_controller.check import check

    return await check(settings, write)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    description = "Keeps the number of drafters in step with the verifiers."
    return ServiceCommand("ratio-controller", description, RatioSettings, _serve, _check).run(arguments)


if __name__ == "__main__":
    sys.exit(main())
