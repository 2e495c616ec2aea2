"""`python -m verifier_service --config FILE` serves; `python -m verifier_service check --config FILE` looks it over."""

import argparse
import asyncio
import sys
from pathlib import Path

from specdec.errors import ConfigError
from specdec.serving.logs import configure
from specdec.serving.server import EXIT_CONFIG, run_service

EXIT_FAILED = 1


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="verifier_service", description="Hosts the target model and verifies drafts.")
    parser.add_argument("command", nargs="?", choices=("serve", "check"), default="serve")
    parser.add_argument("--config", type=Path, help="a YAML file; SPECDEC_VERIFIER_* in the environment wins over it")
    given = parser.parse_args(arguments)
    return _check(given.config) if given.command == "check" else _serve(given.config)


def _serve(config: Path | None) -> int:
    from verifier_service.app import serve
    from verifier_service.config import VerifierSettings

    async def run(stop: asyncio.Event) -> None:
        settings = VerifierSettings.load(config)
        configure("verifier", settings.log)
        await serve(settings, stop)

    return run_service(run)


def _check(config: Path | None) -> int:
    from verifier_service.check import check
    from verifier_service.config import VerifierSettings

    try:
        settings = VerifierSettings.load(config)
    except ConfigError as error:
        sys.stderr.write(f"error: {error.message}\n")
        return EXIT_CONFIG
    return 0 if asyncio.run(check(settings, sys.stdout.write)) else EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
