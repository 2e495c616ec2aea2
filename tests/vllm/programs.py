"""Programs that run in vLLM's own environment."""

import os
import subprocess
from pathlib import Path

from specdec.cli.local.vllm import environment
from tests.vllm.server import PYTHON, ROOT


def run(code: str, folder: Path, *arguments: str) -> str:
    """Run a program in vLLM's environment and return its output.

    It is a file because vLLM's processes may import it.
    """
    (folder / "program.py").write_text(code, encoding="utf-8")
    variables = os.environ | {"PYTHONPATH": str(ROOT), "VLLM_TARGET_DEVICE": "cpu", "HF_HUB_OFFLINE": "1"}
    variables |= environment(PYTHON, variables)
    command = [str(PYTHON), str(folder / "program.py"), *arguments]
    done = subprocess.run(command, env=variables, cwd=folder, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return done.stdout
