"""`specdec serve`: becomes one service; the command line never imports a service, so each image has its own alone."""

import importlib.util
import os
import sys
from pathlib import Path

from specdec.cli.plan import MODULES, Role
from specdec.errors import ConfigError


def command_of(role: Role, config: Path, *arguments: str) -> tuple[str, ...]:
    """The command that runs a service, or with `check` as argument looks its configuration over."""
    return (sys.executable, "-m", MODULES[role], *arguments, "--config", str(config))


def serve(role: Role, config: Path) -> None:
    """Run a service in the foreground, in place of this process.

    Raises:
        ConfigError: the service is not installed here.
    """
    if importlib.util.find_spec(MODULES[role]) is None:
        raise ConfigError(f"the {role} is not installed here")
    command = command_of(role, config)
    os.execv(command[0], command)
