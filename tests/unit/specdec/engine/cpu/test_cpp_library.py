"""A library is built once for each source text, also by concurrent builders, and only in a private folder."""

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from specdec.engine.cpu import cpp_library
from specdec.engine.cpu.cpp_library import LibraryMissing, load_library

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="there is no C++ compiler"
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of built libraries."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    return tmp_path / "specdec" / "libraries"


def write(folder: Path, number: int) -> Path:
    source = folder / "number.cpp"
    source.write_text(f'#include "number.h"\nextern "C" int number() {{ return {number} + MORE; }}\n')
    (folder / "number.h").write_text("#define MORE 0\n")
    return source


def number(source: Path) -> int:
    found: int = load_library(source, [source.with_suffix(".h")]).number()
    return found


def test_each_content_is_built_once(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path, 3)
    assert number(source) == 3
    (library,) = cache.iterdir()
    built = library.stat().st_mtime_ns
    assert number(source) == 3
    assert library.stat().st_mtime_ns == built
    source.with_suffix(".h").write_text("#define MORE 2\n")
    assert number(source) == 5
    assert len(list(cache.iterdir())) == 2
    monkeypatch.setattr(cpp_library, "_processor", lambda: "another one")
    assert number(source) == 5
    assert len(list(cache.iterdir())) == 3


def test_builds_at_the_same_time_leave_one_whole_library(cache: Path, tmp_path: Path) -> None:
    source = write(tmp_path, 4)
    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(number, [source] * 3)) == [4, 4, 4]
    assert [library.suffix for library in cache.iterdir()] == [".so"]


def test_a_cache_that_others_can_write_to_is_not_used(cache: Path, tmp_path: Path) -> None:
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    assert number(write(tmp_path, 5)) == 5
    assert list(cache.iterdir()) == []


def test_a_library_that_others_could_have_written_is_built_anew(cache: Path, tmp_path: Path) -> None:
    source = write(tmp_path, 6)
    assert number(source) == 6
    (library,) = cache.iterdir()
    library.unlink()
    library.write_bytes(b"no library")
    library.chmod(0o666)
    assert number(source) == 6


@pytest.mark.parametrize("content", ["#error no such thing\n", "int number() { return such_thing(); }\n"])
def test_the_reason_is_the_first_error_of_the_compiler(cache: Path, tmp_path: Path, content: str) -> None:
    source = write(tmp_path, 7)
    source.write_text(content)
    with pytest.raises(LibraryMissing, match=r"fails: .*error.*such.thing"):
        load_library(source)
    assert list(cache.iterdir()) == []


def test_no_compiler_or_one_that_hangs_is_a_reason(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path, 8)
    monkeypatch.setenv("CXX", "no-such-compiler -x")
    with pytest.raises(LibraryMissing, match="no-such-compiler"):
        load_library(source)
    monkeypatch.delenv("CXX")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "which", lambda _: None)
        with pytest.raises(LibraryMissing, match=r"no C\+\+ compiler"):
            load_library(source)

    def hangs(command: list[str], **options: float) -> None:
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(subprocess, "run", hangs)
    with pytest.raises(LibraryMissing, match="timed out after 60"):
        load_library(source)
