"""A Dockerfile as the tests read it: its instructions, and the files that it takes from the repository."""

import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
EXTRA_OF: Mapping[str, str] = {"drafter_service": "drafter", "verifier_service": "verifier", "gateway": "gateway"}
"""The extra of each service."""
INSTALLED: Mapping[str, str] = {"drafter_service": "engine", "verifier_service": "engine", "gateway": "gateway"}
"""The extra that its image installs: images of both models install the same, in one layer."""
SERVICES = tuple(EXTRA_OF)


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
