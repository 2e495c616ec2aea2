"""Run a service with only the packages of its own extra. Other installed packages cannot be imported."""

import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PACKAGE_OF: Mapping[str, str] = {
    "drafter": "drafter_service",
    "verifier": "verifier_service",
    "gateway": "gateway",
    "cli": "specdec.cli",
}
"""The package served by each extra."""
_OURS = frozenset({"specdec", "drafter_service", "verifier_service", "gateway"})
_INSTALLERS = frozenset({"pip", "setuptools", "pkg_resources"})

_BLOCK = """
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
RUN = """
sys.argv = [PACKAGE, *ARGUMENTS]
runpy.run_module(PACKAGE, run_name="__main__", alter_sys=True)
"""
"""Code that starts a package like `python -m PACKAGE`."""
RUN_COMMAND = """
sys.argv = ["specdec", *ARGUMENTS]
importlib.import_module(PACKAGE + ".app").main()
"""
"""Code that runs the command line."""
IMPORT_EVERYTHING = """
package = importlib.import_module(PACKAGE)
for module in pkgutil.walk_packages(package.__path__, PACKAGE + "."):
    if module.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] != "vllm":
            raise
"""
"""Code that imports every module of a package. Modules on vLLM need their own environment and are left out."""


def declared(extra: str) -> list[Requirement]:
    """Return the requirements of the base, of one extra and of the extras it names, as declared in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    found = []
    queue = [*map(Requirement, project["dependencies"]), *map(Requirement, extras[extra])]
    while queue:
        requirement = queue.pop(0)
        if requirement.name == project["name"]:
            queue += [
                Requirement(line) for each in requirement.extras for line in project["optional-dependencies"][each]
            ]
        else:
            found.append(requirement)
    return found


@cache
def installed_with(extra: str) -> frozenset[str]:
    """Return the normalized name of every distribution that an installation of the extra brings."""
    found: set[str] = set()
    queue = declared(extra)
    while queue:
        requirement = queue.pop()
        name = canonicalize_name(requirement.name)
        if name in found and not requirement.extras:
            continue
        if needs := _needs(requirement):
            found.add(name)
            queue += needs[1:]
    return frozenset(found)


def _needs(requirement: Requirement) -> list[Requirement]:
    """Return the requirement and its own requirements on this platform, or nothing if it is not installed."""
    try:
        lines = metadata.requires(requirement.name) or []
    except metadata.PackageNotFoundError:
        return []
    return [requirement, *_wanted(map(Requirement, lines), requirement.extras)]


def _wanted(needs: Iterator[Requirement], extras: set[str]) -> Iterator[Requirement]:
    for need in needs:
        if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield need


@cache
def foreign_modules(extra: str) -> frozenset[str]:
    """Return top-level modules that are installed here and missing in an installation of the extra."""
    ours = installed_with(extra)
    return frozenset(
        module
        for module, owners in metadata.packages_distributions().items()
        if not {canonicalize_name(owner) for owner in owners} & ours and module.isidentifier()
    ) - (_OURS | _INSTALLERS)


def command_with(extra: str, code: str, *arguments: str, package: str = "") -> list[str]:
    """Return a command that runs `code` without the modules that the extra lacks. It defines PACKAGE and ARGUMENTS.

    The packages of the other services cannot be imported either.
    """
    package = package or PACKAGE_OF[extra]
    services = set(PACKAGE_OF.values()) - {"specdec.cli", PACKAGE_OF[extra]}
    head = f"PACKAGE, ARGUMENTS, BLOCKED = {package!r}, {list(arguments)!r}, {foreign_modules(extra) | services!r}\n"
    return [sys.executable, "-B", "-c", head + _BLOCK + code]
