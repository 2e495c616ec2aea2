"""Files that exist only while `specdec up` runs: a private folder for its processes, and the list of what runs."""

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

_PREFIX = "specdec-up-"
_LOCK = "lock"


@contextmanager
def runtime_folder() -> Iterator[Path]:
    """A fresh folder that only its owner can enter, removed at the end; folders that killed owners left are removed."""
    _sweep(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    try:
        unnamed = folder / f".{_LOCK}"  # gets its name only once it is held, so that nobody finds it free
        with unnamed.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            unnamed.rename(folder / _LOCK)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def state_file(path: Path | None, processes: Sequence[Mapping[str, object]]) -> Iterator[None]:
    """List the processes in a JSON file inside the context; a reader sees the whole list or no file.

    Raises:
        OSError: the folder does not exist or cannot be written.
    """
    if path is None:
        yield
        return
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(json.dumps(processes, indent=2) + "\n", encoding="utf-8")
    beside.replace(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _sweep(parent: Path) -> None:
    """Remove this user's runtime folders whose lock nobody holds."""
    for lock in parent.glob(f"{_PREFIX}*/{_LOCK}"):
        if lock.parent.lstat().st_uid == os.getuid() and _abandoned(lock):
            shutil.rmtree(lock.parent, ignore_errors=True)


def _abandoned(lock: Path) -> bool:
    try:
        with lock.open() as held:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
