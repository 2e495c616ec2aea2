"""A Dockerfile parsed for the tests: its instructions, and the files that it copies from the repository."""

import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
EXTRA_OF: Mapping[str, str] = {"drafter_service": "drafter", "verifier_service": "verifier", "gateway": "gateway"}
"""Extra of each service."""
INSTALLED: Mapping[str, str] = {"drafter_service": "engine", "verifier_service": "engine", "gateway": "gateway"}
"""Extra that each service's image installs. The images of both models install the same packages, in one layer."""
SERVICES = tuple(EXTRA_OF)


class Instruction(NamedTuple):
    """One instruction, with its continuation lines."""

    word: str
    rest: str


def dockerfile(service: str) -> list[Instruction]:
    """Return the instructions of a service's Dockerfile, in order."""
    text = (ROOT / service / "Dockerfile").read_text(encoding="utf-8")
    joined = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    return [Instruction(*line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]


def copied(service: str) -> Iterator[tuple[Path, str]]:
    """Yield (source, destination) of the files that the image copies from the repository into its folder."""
    stages = [index for index, each in enumerate(dockerfile(service)) if each.word == "FROM"]
    for each in dockerfile(service)[stages[1] :]:
        if each.word == "COPY" and "--from" not in each.rest:
            *sources, destination = each.rest.split()
            for source in sources:
                for found in sorted(ROOT.glob(source)):
                    yield found, destination


def build(service: str, folder: Path) -> None:
    """Put the contents of the image's folder into `folder`."""
    for source, destination in copied(service):
        target = folder / destination
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
