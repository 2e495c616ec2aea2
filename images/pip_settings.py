"""pip's package sources on this machine, in a form for build steps: a file and mounts, never a layer."""

import ast
import configparser
import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

SOURCES = (
    "index-url",
    "extra-index-url",
    "no-index",
    "find-links",
    "trusted-host",
    "cert",
    "client-cert",
    "proxy",
    "constraint",
    "timeout",
    "default-timeout",
    "retries",
)
"""Settings for the origin of packages. Other settings of the machine do not belong into an image."""
INSIDE = "/dev/pip"
"""Mount point of this machine's files. /dev is in memory during a build step, so no mount point remains in a layer."""
_SECTIONS = ("global", "install", ":env:")
"""Sections from the weakest to the strongest, in pip's order of precedence."""


@dataclass(frozen=True)
class PipSettings:
    """A configuration file for pip, and the files of this machine that it names."""

    text: str
    mounts: tuple[tuple[Path, str], ...]
    """Paths (here, in the container) of each file or folder that the text names."""


def settings_of(listed: str) -> PipSettings:
    """Return the settings for a build step, from the output of `pip config list`.

    Raises:
        ValueError: a line is not `section.key='value'`.
    """
    found: dict[str, str] = {}
    for section in _SECTIONS:
        found |= dict(_section(section, listed.splitlines()))
    mounts: dict[Path, str] = {}
    parser = configparser.RawConfigParser()
    parser["global"] = {key: _inside(value, mounts) for key, value in found.items()}
    text = io.StringIO()
    parser.write(text)
    return PipSettings(text.getvalue(), tuple(mounts.items()))


def _section(section: str, lines: Iterable[str]) -> Iterable[tuple[str, str]]:
    for line in lines:
        name, equals, value = line.partition("=")
        if not equals:
            raise ValueError(f"pip config list: no setting in {line!r}")
        if name.startswith(f"{section}.") and (key := name.removeprefix(f"{section}.")) in SOURCES:
            yield key, str(ast.literal_eval(value))


def _inside(value: str, mounts: dict[Path, str]) -> str:
    """Return the value with every path of this machine replaced by its mount point."""
    return " ".join(_mounted(word, mounts) for word in value.split())


def _mounted(word: str, mounts: dict[Path, str]) -> str:
    scheme = "file://" if word.startswith("file://") else ""
    path = Path(word.removeprefix(scheme))
    if not (path.is_absolute() and path.exists()):
        return word
    # A link index names its files by relative paths, so the folder that holds both is mounted.
    root = path.parent if path.name == "simple" else path
    return scheme + str(Path(mounts.setdefault(root, f"{INSIDE}/{len(mounts)}")) / path.relative_to(root))
