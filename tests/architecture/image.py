"""A Dockerfile as the tests read it: its instructions, the files it takes, the packages it installs."""

import re
import shutil
import sys
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
SERVICES = ("drafter_service", "verifier_service", "gateway")

_WITHOUT_THE_REST = """
import importlib, pkgutil, runpy, sys

class Without:
    def __init__(self, finder):
        self._finder = finder

    def __getattr__(self, name):
        return getattr(self._finder, name)

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in BLOCKED else self._finder.find_spec(name, path, target)

sys.meta_path[:] = map(Without, sys.meta_path)
"""
RUN_SERVICE = """
sys.argv = [PACKAGE, *ARGUMENTS]
runpy.run_module(PACKAGE, run_name="__main__", alter_sys=True)
"""
"""Code that starts the service as the image's entrypoint does."""


class Instruction(NamedTuple):
    """One line, with its continuations."""

    word: str
    rest: str


def dockerfile(service: str) -> list[Instruction]:
    """The instructions of a service's Dockerfile, in order."""
    text = (ROOT / service / "Dockerfile").read_text(encoding="utf-8")
    joined = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    return [Instruction(*line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]


def copied(service: str) -> Iterator[tuple[Path, str]]:
    """(source, destination) of what the image takes from the repository into its folder."""
    stages = [index for index, each in enumerate(dockerfile(service)) if each.word == "FROM"]
    for each in dockerfile(service)[stages[1] :]:
        if each.word == "COPY" and "--from" not in each.rest:
            *sources, destination = each.rest.split()
            for source in sources:
                for found in sorted(ROOT.glob(source)):
                    yield found, destination


def build(service: str, folder: Path) -> None:
    """Put into a folder what the image has in its own."""
    for source, destination in copied(service):
        target = folder / destination
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)


def requirements(service: str) -> list[Requirement]:
    """What the image installs by name."""
    lines = (ROOT / service / "requirements.txt").read_text(encoding="utf-8").split()
    return [Requirement(line) for line in lines]


def installed(service: str) -> set[str]:
    """Every distribution that comes with them, here."""
    found: set[str] = set()
    queue = [(each.name, each.extras) for each in requirements(service)]
    while queue:
        name, extras = queue.pop()
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:  # of another platform
            continue
        found.add(canonicalize_name(name))
        for need in map(Requirement, needs):
            wanted = need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in ("", *extras))
            if wanted and (canonicalize_name(need.name) not in found or need.extras):
                queue.append((need.name, need.extras))
    return found


@cache
def foreign_modules(service: str) -> frozenset[str]:
    """Top-level modules that are installed here and would not be in the image."""
    ours = installed(service)
    return frozenset(
        module
        for module, owners in metadata.packages_distributions().items()
        if not {canonicalize_name(owner) for owner in owners} & ours and module.isidentifier()
    ) - {"pip", "setuptools", "pkg_resources", "protos", "specdec", *SERVICES}


def command_in_image(service: str, code: str, *arguments: str) -> list[str]:
    """Runs `code`, which finds PACKAGE and ARGUMENTS, without the modules that the image lacks.

    It is to run in the folder that `build` filled, with that folder as PYTHONPATH.
    """
    blocked = sorted(foreign_modules(service) | set(SERVICES) - {service})
    head = f"PACKAGE, ARGUMENTS, BLOCKED = {service!r}, {list(arguments)!r}, frozenset({blocked!r})\n"
    return [sys.executable, "-B", "-c", head + _WITHOUT_THE_REST + code]
