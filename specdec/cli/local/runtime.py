"""Folders and files of `specdec up`: a private runtime folder, a state file and a persistent data folder."""

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from specdec.errors import ConfigError

_PREFIX = "specdec-up-"
_LOCK = "lock"


@contextmanager
def runtime_folder() -> Iterator[Path]:
    """A new private folder, removed at the end; also removes the folders of killed processes."""
    _sweep(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as made:
        folder = Path(made)
        unnamed = folder / f".{_LOCK}"  # renamed only once it is locked, so that another process cannot lock it first
        with unnamed.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            unnamed.rename(folder / _LOCK)
            yield folder


@contextmanager
def data_folder(path: Path | None) -> Iterator[None]:
    """Lock a persistent folder, created private to its owner if it does not exist; None locks nothing.

    Raises:
        ConfigError: the folder cannot be created or written, or another process has locked it.
    """
    if path is None:
        yield
        return
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (path / _LOCK).open("w")
    except OSError as error:
        raise ConfigError(f"--data {path}: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(f"--data {path}: another specdec up uses it") from error
        yield


Processes = Sequence[Mapping[str, object]]


@contextmanager
def state_file(path: Path | None) -> Iterator[Callable[[Processes], None]]:
    """A function that writes a list of processes as JSON, atomically; for None it writes nothing.

    The file is removed at the end. Writing raises OSError if the folder does not exist or cannot be written.
    """

    def write(processes: Processes) -> None:
        if path is None:
            return
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        beside.write_text(json.dumps(processes, indent=2) + "\n", encoding="utf-8")
        beside.replace(path)

    try:
        yield write
    finally:
        if path is not None:
            path.unlink(missing_ok=True)


def _sweep(parent: Path) -> None:
    """Remove this user's runtime folders whose lock is free."""
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
