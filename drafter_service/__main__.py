"""`python -m drafter_service --config FILE` serves; `python -m drafter_service check --config FILE` looks it over."""

import argparse
import asyncio
import sys
from pathlib import Path

from drafter_service.config import DrafterSettings
from specdec.errors import ConfigError
from specdec.serving.logs import configure
from specdec.serving.server import EXIT_CONFIG, run_service

EXIT_FAILED = 1


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="drafter_service", description="Drafts tokens for verifiers to check.")
    parser.add_argument("command", nargs="?", choices=("serve", "check"), default="serve")
    parser.add_argument("--config", type=Path, help="a YAML file; SPECDEC_DRAFTER_* in the environment wins over it")
    given = parser.parse_args(arguments)
    return _check(given.config) if given.command == "check" else _serve(given.config)


def _serve(config: Path | None) -> int:
    async def run(stop: asyncio.Event) -> None:
        settings = DrafterSettings.load(config)
        configure("drafter", settings.log)
        from drafter_service.app import serve

        await serve(settings, stop)

    return run_service(run)


def _check(config: Path | None) -> int:
    try:
        settings = DrafterSettings.load(config)
    except ConfigError as error:
        sys.stderr.write(f"error: {error.message}\n")
        return EXIT_CONFIG
    from drafter_service.check import check

    return 0 if check(settings, sys.stdout.write) else EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
