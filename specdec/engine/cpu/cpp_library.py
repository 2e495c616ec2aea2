"""C++ files of this package, built at run time for this processor and cached in the user's cache folder."""

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import torch

SOURCES = Path(__file__).parent
"""Folder of the C++ sources of this package's operators."""

HostCode = Literal["auto", "operator", "torch"]
"""Implementation of a part of a pass on the host: the C++ operator, PyTorch, or the operator if it is available."""

_FLAGS = ("-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fopenmp", "-shared", "-fPIC")
_TORCH = Path(torch.__file__).parent
TORCH_FLAGS = (
    "-DTORCH_TARGET_VERSION=0x020b000000000000",  # the oldest supported PyTorch; the library runs with later ones
    f"-I{_TORCH / 'include'}",
    f"-L{_TORCH / 'lib'}",
    "-ltorch_cpu",
)
"""Flags for a source that includes PyTorch's headers in `torch/csrc/stable`."""
_BUILD_SECONDS = 60.0
_GROUP_OR_WORLD, _WORLD = 0o022, 0o002
"""Write permission of others, as bits of a file mode."""


class LibraryMissing(Exception):
    """The library is not available on this machine; the message gives the reason in one line."""


def load_library(source: Path, headers: Sequence[Path] = (), flags: Sequence[str] = ()) -> ctypes.CDLL:
    """Load the library of a C++ file that includes `headers`, built with `flags` by CXX or the system's compiler.

    The library is built once for each content, compiler and processor. Concurrent builds in several processes are safe.
    A cache folder that others can write to is not used; the library is then built for this process alone.

    Raises:
        LibraryMissing: there is no compiler, it fails or takes over 60 s, or the library cannot be loaded.
    """
    compiler = _compiler()
    command = [*compiler, *_FLAGS, str(source), *flags]
    try:
        name = f"{source.stem}-{_key(compiler, flags, (source, *headers))}.so"
        cache = _cache()
        if cache is not None:
            return _built(command, cache / name)
        with tempfile.TemporaryDirectory(prefix="specdec-") as folder:
            return _built(command, Path(folder) / name)
    except subprocess.CalledProcessError as failure:
        raise LibraryMissing(f"{compiler[0]} fails: {_first_line(failure.stderr, 'error')}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LibraryMissing(_first_line(str(error))) from None


def _compiler() -> list[str]:
    if named := shlex.split(os.environ.get("CXX", "")):
        return named
    found = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    if found is None:
        raise LibraryMissing("there is no C++ compiler")
    return [found]


def _key(compiler: Sequence[str], flags: Sequence[str], files: Sequence[Path]) -> str:
    """Hash over all inputs of the build: compiler, flags, processor and files."""
    version = subprocess.run([*compiler, "--version"], capture_output=True, check=True, timeout=_BUILD_SECONDS).stdout
    command = " ".join((*compiler, *_FLAGS, *flags))
    parts = [version, command.encode(), _processor().encode(), *map(Path.read_bytes, files)]
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[:32]


def _processor() -> str:
    """The processor's model and instruction sets, as reported by the system."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    told = [line for line in lines if line.lower().startswith(("model name", "flags", "features", "cpu part"))]
    return "\n".join([platform.machine(), platform.processor(), *dict.fromkeys(told)])


def _cache() -> Path | None:
    """The user's cache folder for libraries; None if there is none that only the user can write to."""
    try:
        root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(root) / "specdec" / "libraries"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # On many systems a user's own group can write to new folders, and the parent may have been created like that.
        ours = _is_ours(folder) and _is_ours(folder.parent, _WORLD)
        return folder if ours and os.access(folder, os.W_OK) else None
    except (OSError, RuntimeError):  # a read-only file system, or a user without a home
        return None


def _is_ours(path: Path, others: int = _GROUP_OR_WORLD) -> bool:
    """Whether `path` belongs to this user and has none of the write permissions in `others`."""
    found = path.stat(follow_symlinks=False)
    return found.st_uid == os.getuid() and not found.st_mode & others


def _built(command: Sequence[str], library: Path) -> ctypes.CDLL:
    """Load the library, built if it is missing; the file gets its name only when it is complete."""
    if not (library.is_file() and _is_ours(library)):
        handle, part = tempfile.mkstemp(suffix=".part", dir=library.parent)
        os.close(handle)
        try:
            subprocess.run([*command, "-o", part], capture_output=True, check=True, text=True, timeout=_BUILD_SECONDS)
            os.chmod(part, 0o700)
            os.replace(part, library)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(part)
    return ctypes.CDLL(str(library))


def _first_line(text: str | bytes | None, word: str = "") -> str:
    """The first line that contains `word`, or else the first line."""
    lines = (text.decode(errors="replace") if isinstance(text, bytes) else text or "").strip().splitlines()
    return next((line for line in lines if word in line), lines[0] if lines else "without a message")
