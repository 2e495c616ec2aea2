"""A private folder for configurations, sockets and logs that is gone when its owner is."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PREFIX = "specdec-up-"
_LOCK = "lock"


@contextmanager
def runtime_folder() -> Iterator[Path]:
    """A fresh folder only its owner can enter, removed at the end; one that a killed owner left goes now."""
    _sweep(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    try:
        unnamed = folder / f".{_LOCK}"  # named only once it is held, so that nobody finds it free
        with unnamed.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            unnamed.rename(folder / _LOCK)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sweep(parent: Path) -> None:
    """Remove our own folders whose lock nobody holds."""
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
