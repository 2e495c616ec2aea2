"""Where pip finds packages on this machine, as a step of a build may read it: a file and mounts, never a layer."""

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
"""The settings that say where packages come from; the others of a machine are no matter of an image."""
INSIDE = "/dev/pip"
"""Where files of this machine are mounted: /dev is in memory while a step runs, so no mount point stays in a layer."""
_SECTIONS = ("global", "install", ":env:")
"""From the weakest to the strongest, as pip reads them."""


@dataclass(frozen=True)
class PipSettings:
    """A configuration file for pip, and what it names of this machine."""

    text: str
    mounts: tuple[tuple[Path, str], ...]
    """(here, in the container) of each file or folder that the text names."""


def settings_of(listed: str) -> PipSettings:
    """What `pip config list` printed, as a step of a build can read it.

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
    """The value with every path of this machine replaced by where it is mounted."""
    return " ".join(_mounted(word, mounts) for word in value.split())


def _mounted(word: str, mounts: dict[Path, str]) -> str:
    scheme = "file://" if word.startswith("file://") else ""
    path = Path(word.removeprefix(scheme))
    if not (path.is_absolute() and path.exists()):
        return word
    # An index of links names its files by paths beside it, so what is mounted is the folder that holds both.
    root = path.parent if path.name == "simple" else path
    return scheme + str(Path(mounts.setdefault(root, f"{INSIDE}/{len(mounts)}")) / path.relative_to(root))
