"""`python -m images [NAME ...]`: build images one by one, and print the duration and size of each.

Base images are built from Debian's packages if the local store lacks them. The command fails if an image has grown by a
tenth over sizes.json; `--state` writes the measured sizes there.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from images import sizes
from images.engine import Podman, lacking
from images.pip_settings import PipSettings, settings_of

ROOT = Path(__file__).parents[1]
SCRATCH = ROOT / "build" / "images"
TAG = "0.1.0"


@dataclass(frozen=True)
class Base:
    """Base image of a Dockerfile, built from Debian's packages."""

    name: str
    suite: str
    packages: str


PYTHON = Base("docker.io/library/python:3.11.14-slim-bookworm", "bookworm", "ca-certificates,python3,python3-venv")
DEBIAN = Base("docker.io/library/debian:trixie-slim", "trixie", "ca-certificates")


@dataclass(frozen=True)
class Image:
    """An image that is built here."""

    dockerfile: str
    name: str
    base: Base = PYTHON


# Names by which compose and kubelets look for the images. Names without a registry have this meaning.
IMAGES: Mapping[str, Image] = {
    "gateway": Image("gateway/Dockerfile", f"docker.io/specdec/gateway:{TAG}"),
    "drafter": Image("drafter_service/Dockerfile", f"docker.io/specdec/drafter:{TAG}"),
    "verifier": Image("verifier_service/Dockerfile", f"docker.io/specdec/verifier:{TAG}"),
    "verifier-vllm": Image("verifier_service/vllm/Dockerfile", f"docker.io/specdec/verifier-vllm:{TAG}"),
    # The store of compose.yaml and of the chart, for machines without a registry: Debian's Valkey.
    "valkey": Image("images/valkey/Dockerfile", "docker.io/valkey/valkey:8.1.4-alpine", DEBIAN),
}


def build(podman: Podman, image: Image, pip: PipSettings) -> float:
    """Build one image, and return the duration in seconds.

    Raises:
        SystemExit: the build failed.
    """
    began = time.monotonic()
    base = image.base
    if not podman.has(base.name):
        script = str(ROOT / "images" / "base.sh")
        _succeed(podman, (script, str(podman.scratch), base.name, base.suite, base.packages))
    secret = podman.scratch / "pip.conf"
    secret.write_text(pip.text, encoding="utf-8")
    mounts = [f"--volume={here}:{inside}:ro" for here, inside in pip.mounts]
    options = ("--runtime=runc", "--network=host", "--layers", f"--secret=id=pip,src={secret}", *mounts)
    _succeed(podman, ("podman", "build", *options, "--file", image.dockerfile, "--tag", image.name, "."))
    return time.monotonic() - began


def _succeed(podman: Podman, command: Sequence[str]) -> None:
    if podman.run(command):
        raise SystemExit(f"failed: {' '.join(command)}")


def main() -> None:
    """Build the images named on the command line, or all of them."""
    parser = argparse.ArgumentParser(prog="python -m images", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(IMAGES))
    parser.add_argument("--state", action="store_true", help="write the measured sizes to sizes.json")
    asked = parser.parse_args()
    if unknown := [name for name in asked.names if name not in IMAGES]:
        parser.error(f"no image {', '.join(unknown)}: choose from {', '.join(IMAGES)}")
    if reason := lacking():
        raise SystemExit(reason)
    podman = Podman(SCRATCH)
    podman.environment()
    command = (sys.executable, "-m", "pip", "config", "list")
    pip = settings_of(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    measured: dict[str, int] = {}
    for name in asked.names or IMAGES:
        seconds = build(podman, IMAGES[name], pip)
        measured[name] = podman.megabytes(IMAGES[name].name)
        sys.stdout.write(f"{name}: {measured[name]} MB in {seconds:.0f} s\n")
        sys.stdout.flush()
    if asked.state:
        sizes.state(measured)
    if grown := sizes.grown(measured, sizes.stated()):
        raise SystemExit("\n".join(grown))


if __name__ == "__main__":
    main()
