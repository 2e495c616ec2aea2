"""Command line of every service: `python -m SERVICE [serve

check] --config FILE`.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from specdec.errors import ConfigError
from specdec.serving.rpc.server import EXIT_CONFIG, run_service
from specdec.serving.settings import Settings
from specdec.serving.telemetry.logs import configure

EXIT_FAILED = 1


@dataclass(frozen=True, slots=True)
class ServiceCommand:
    """The command of one service."""

    name: str
    """Name of the service in its logs."""
    description: str
    settings: type[Settings]
    package: str
    """Package with the coroutines `app.serve(settings, stop)`, which serves until the event `stop` is set, and
    `check.check(settings, write)`, which writes checks and returns whether all passed. They are imported late, so that
    a wrong setting is reported before slow imports."""

    def run(self, arguments: Sequence[str] | None = None) -> int:
        """Parse the arguments and run. Return the exit status: 0, 1 for a failed check, or 2 for a wrong setting."""
        given = self._parser().parse_args(arguments)
        return self._check(given.config) if given.command == "check" else self._serve(given.config)

    def _parser(self) -> argparse.ArgumentParser:
        prefix = self.settings.model_config["env_prefix"]
        parser = argparse.ArgumentParser(prog=self.name, description=self.description)
        parser.add_argument("command", nargs="?", choices=("serve", "check"), default="serve")
        parser.add_argument("--config", type=Path, help=f"a YAML file; {prefix}* in the environment wins over it")
        return parser

    def _serve(self, config: Path | None) -> int:
        async def main(stop: asyncio.Event) -> None:
            settings = self.settings.load(config)
            configure(self.name, settings.log)
            await import_module(f"{self.package}.app").serve(settings, stop)

        return run_service(main)

    def _check(self, config: Path | None) -> int:
        try:
            settings = self.settings.load(config)
        except ConfigError as error:
            sys.stderr.write(f"error: {error.message}\n")
            return EXIT_CONFIG
        passed = asyncio.run(import_module(f"{self.package}.check").check(settings, sys.stdout.write))
        return 0 if passed else EXIT_FAILED
