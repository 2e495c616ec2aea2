"""`python -m gateway --config FILE` serves; `python -m gateway check --config FILE` looks its surroundings over."""

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

from specdec.errors import ConfigError
from specdec.serving.logs import configure
from specdec.serving.server import EXIT_CONFIG, run_service

EXIT_FAILED = 1


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="gateway", description="The public door: OpenAI-compatible HTTP, and gRPC.")
    parser.add_argument("command", nargs="?", choices=("serve", "check"), default="serve")
    parser.add_argument("--config", type=Path, help="a YAML file; SPECDEC_GATEWAY_* in the environment wins over it")
    given = parser.parse_args(arguments)
    _keep_torch_out()
    return _check(given.config) if given.command == "check" else _serve(given.config)


def _keep_torch_out() -> None:
    """Where torch is installed, transformers would import it to load a tokenizer: seconds, and most of our memory."""
    modules: dict[str, Any] = sys.modules
    modules["torch"] = None


def _serve(config: Path | None) -> int:
    from gateway.app import serve
    from gateway.config import GatewaySettings

    async def run(stop: asyncio.Event) -> None:
        settings = GatewaySettings.load(config)
        configure("gateway", settings.log)
        await serve(settings, stop)

    return run_service(run)


def _check(config: Path | None) -> int:
    from gateway.check import check
    from gateway.config import GatewaySettings

    try:
        settings = GatewaySettings.load(config)
    except ConfigError as error:
        sys.stderr.write(f"error: {error.message}\n")
        return EXIT_CONFIG
    return 0 if asyncio.run(check(settings, sys.stdout.write)) else EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
