"""The separate environment of verifiers with a vLLM target: the dependencies of vLLM and of `specdec` differ."""

import os
from collections.abc import Mapping
from pathlib import Path

from specdec.cli.settings import UpSettings, find_model
from specdec.errors import ConfigError

_PACKAGES = "lib/python3.*/site-packages/vllm"
_OPENMP = "lib/libiomp5.so"
"""Intel's OpenMP, which vLLM uses on a CPU if it is loaded first."""


def interpreter(settings: UpSettings) -> Path | None:
    """The Python interpreter of the verifiers; None for the current one.

    Raises:
        ConfigError: the environment does not exist or has no vLLM.
    """
    if settings.backend != "vllm":
        return None
    python = find_model(settings.vllm_python).absolute()
    if not python.is_file():
        raise ConfigError(f"--backend vllm needs an environment, and {python} is not there: run `make vllm`")
    if not any(_folder(python).glob(_PACKAGES)):
        raise ConfigError(f"--vllm-python {python} is of an environment without vLLM: run `make vllm`")
    return python


def environment(python: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """Additional environment variables for a process of that interpreter."""
    library = _folder(python) / _OPENMP
    if not library.is_file() or library.name in inherited.get("LD_PRELOAD", ""):
        return {}
    return {"LD_PRELOAD": os.pathsep.join(filter(None, (inherited.get("LD_PRELOAD", ""), str(library))))}


def _folder(python: Path) -> Path:
    return python.parent.parent
