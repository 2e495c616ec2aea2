"""`specdec serve`: run one service. The command line imports no service, because an image holds only one of them."""

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from specdec.cli.local.plan import MODULES
from specdec.errors import ConfigError

Servant = Literal["drafter", "verifier", "gateway", "ratio-controller"]
"""The services that `specdec serve` can run."""
_DEFAULTS = {"GOMP_SPINCOUNT": "1000"}
"""Variables of a service. PyTorch's threads wait briefly for each other before they sleep; without this variable they
wait for milliseconds, on a processor that other services need (decision 40)."""


def command_of(role: Servant, config: Path, *arguments: str) -> tuple[str, ...]:
    """The command that runs a service or, with the argument `check`, checks its configuration."""
    return (sys.executable, "-m", _module(role), *arguments, "--config", str(config))


def with_defaults(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the inherited environment with the defaults that it lacks."""
    return {**_DEFAULTS, **inherited}


def serve(role: Servant, config: Path) -> None:
    """Replace this process by a service.

    Raises:
        ConfigError: the service is not installed here.
    """
    if importlib.util.find_spec(_module(role).partition(".")[0]) is None:
        raise ConfigError(f"the {role} is not installed here")
    command = command_of(role, config)
    os.execve(command[0], command, with_defaults(os.environ))


def _module(role: Servant) -> str:
    return "gateway.ratio_controller" if role == "ratio-controller" else MODULES[role]
