"""The training text: the running interpreter's standard library, split into training and held-out files."""

import hashlib
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

HELD_OUT_SHARE = 0.05
_SKIPPED_FOLDERS = frozenset({"test", "tests", "idle_test", "site-packages", "__pycache__"})
# Generated tables teach nothing about code, and the build configuration contains paths of the build machine.
_GENERATED_FOLDERS = frozenset({"encodings", "pydoc_data"})
_GENERATED_PREFIXES = ("_sysconfigdata", "config-")


@dataclass(frozen=True)
class Document:
    """One source file: its path relative to the corpus root, with forward slashes, and its text."""

    path: str
    text: str


@dataclass(frozen=True)
class Corpus:
    """All documents, sorted by path. The training and held-out sets are disjoint."""

    train: tuple[Document, ...]
    held_out: tuple[Document, ...]


def stdlib_root() -> Path:
    """Return the folder of the running interpreter's standard library."""
    return Path(sysconfig.get_paths()["stdlib"])


def is_source(path: PurePosixPath) -> bool:
    """Whether a relative path is hand-written library code, not a test, third-party code or a generated table."""
    if set(path.parts[:-1]) & (_SKIPPED_FOLDERS | _GENERATED_FOLDERS):
        return False
    return not any(part.startswith(_GENERATED_PREFIXES) for part in path.parts)


def is_held_out(path: str, seed: int, share: float = HELD_OUT_SHARE) -> bool:
    """Whether a file is held out of training: a pure function of its relative path and the seed."""
    digest = hashlib.sha256(f"{seed}:{path}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def read_corpus(root: Path, seed: int, share: float = HELD_OUT_SHARE) -> Corpus:
    """Read every source file under `root`. A seeded hash of the path holds out `share` of the files."""
    documents = tuple(_documents(root))
    held_out = tuple(d for d in documents if is_held_out(d.path, seed, share))
    train = tuple(d for d in documents if not is_held_out(d.path, seed, share))
    return Corpus(train=train, held_out=held_out)


def _documents(root: Path) -> Iterator[Document]:
    paths = sorted(PurePosixPath(path.relative_to(root).as_posix()) for path in root.rglob("*.py"))
    for path in filter(is_source, paths):
        text = _read(root / path)
        if text.strip():
            yield Document(str(path), text)


def _read(path: Path) -> str:
    # A few old files are not UTF-8. The replacement character is too rare to be learned.
    return path.read_text(encoding="utf-8", errors="replace").replace("\r\n", "\n")
