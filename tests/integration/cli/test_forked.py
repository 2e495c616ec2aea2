"""Children forked after an import: the import happens once, and each child is otherwise a process of its own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from specdec.cli.local import forked
from specdec.cli.local.processes import Child, ChildCommand, Children

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not forked.is_supported(), reason="processes are forked on Linux without a GPU"),
]

LIBRARY = (
    "import os, pathlib\nwith pathlib.Path(__file__).with_name('imports').open('a') as file: file.write('once ')\n"
)
SERVICE = """
import os, signal, sys, library
def end(*_):
    print("down", flush=True)
    sys.exit(3)
signal.signal(signal.SIGTERM, end)
print(__name__, sys.argv[1:], os.environ["WHO"], os.getpgid(0) == os.getpid(), flush=True)
while True:
    signal.pause()
"""
SYSTEM = """
import os, sys, time
from pathlib import Path
from specdec.cli.local.processes import Children, ChildCommand
argv = (sys.executable, "-m", "service")
child = Children().start(ChildCommand("a", "a", argv, Path(sys.argv[1], "a.log"), "", ("library",)), os.environ)
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a service and a module that two services import."""
    (tmp_path / "library.py").write_text(LIBRARY)
    (tmp_path / "service.py").write_text(SERVICE)
    return tmp_path


def started(children: Children, folder: Path, name: str, preload: str = "library", **variables: str) -> Child:
    argv = (sys.executable, "-m", "service", "--name", name)
    command = ChildCommand(name, name, argv, folder / f"{name}.log", "", (preload,))
    return children.start(command, environment(folder) | {"WHO": name} | variables)


def environment(folder: Path) -> dict[str, str]:
    path = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def says(child: Child, word: str) -> Callable[[], bool]:
    return lambda: child.command.log.exists() and word in child.command.log.read_text()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_an_import_is_shared_and_nothing_else(folder: Path) -> None:
    with Children(grace=20) as children:
        pair = [started(children, folder, name) for name in ("one", "two")]
        for child in pair:
            name = child.command.name
            until(says(child, f"__main__ ['--name', '{name}'] {name} True"))
            assert Path(f"/proc/{child.pid}/comm").read_text().strip() == name
            assert child.exit_status is None
    assert (folder / "imports").read_text() == "once "
    assert [child.log_tail().splitlines()[1:] for child in pair] == [["down"]] * 2
    assert [child.exit_status for child in pair] == [3, 3]
    assert not any(alive(child.pid) for child in pair)


def test_a_killed_child_starts_again_without_the_import(folder: Path) -> None:
    with Children(grace=20) as children:
        child, other = (started(children, folder, name) for name in ("one", "two"))
        until(says(child, "__main__"))
        os.kill(child.pid, signal.SIGKILL)
        assert child.process.wait() == -signal.SIGKILL
        child = children.restart(child)
        until(lambda: child.log_tail().count("__main__") == 2)
        assert other.exit_status is None
    assert (folder / "imports").read_text() == "once "


def test_a_killed_server_takes_its_children_along_and_is_replaced(folder: Path) -> None:
    with Children(grace=20) as children:
        child = started(children, folder, "one")
        until(says(child, "__main__"))
        os.kill(_parent(child.pid), signal.SIGKILL)
        until(lambda: child.exit_status == -signal.SIGKILL)
        until(lambda: not alive(child.pid))
        child = children.restart(child)
        until(lambda: child.log_tail().count("__main__") == 2)


def test_what_cannot_be_imported_is_said_in_the_log(folder: Path) -> None:
    (folder / "library.py").write_text("raise RuntimeError('no such model library')")
    with Children(grace=20) as children:
        child = started(children, folder, "one")
        until(lambda: child.exit_status == 1)
        assert "no such model library" in child.log_tail()
        with pytest.raises(ProcessLookupError):
            _ = child.pid


def test_leaving_does_not_wait_for_an_import(folder: Path) -> None:
    (folder / "library.py").write_text("import time\nprint('imported', flush=True)\ntime.sleep(600)")
    with Children(grace=600) as children:
        child = started(children, folder, "one")
        until(says(child, "imported"))
        left = time.monotonic()
    assert time.monotonic() - left < 60
    assert child.exit_status == -signal.SIGKILL


def test_a_parent_that_is_killed_takes_server_and_children_along(folder: Path) -> None:
    parent = [sys.executable, "-c", SYSTEM, str(folder)]
    variables: Mapping[str, str] = environment(folder) | {"WHO": "a"}
    process = subprocess.Popen(parent, stdout=subprocess.PIPE, text=True, env=variables)
    assert process.stdout is not None
    with process, process.stdout as output:
        pid = int(output.readline())
        server = _parent(pid)
        process.kill()
    until(lambda: not alive(pid) and not alive(server))


def test_beside_a_gpu_nothing_is_forked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked, "_GPUS", (str(folder),))
    with Children(grace=20) as children:
        child = started(children, folder, "one")
        until(says(child, "__main__"))
        assert _parent(child.pid) == os.getpid()
    assert child.exit_status == 3


@contextmanager
def listening(folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a fork server that listens in a folder, where other systems find it."""
    command = [sys.executable, "-m", "specdec.cli.local.fork_server", str(folder / "library"), "library"]
    with subprocess.Popen(command, env=environment(folder)) as process:
        until((folder / "library").exists)
        try:
            yield process
        finally:
            process.kill()


def test_systems_share_an_import_where_a_server_listens(folder: Path) -> None:
    with listening(folder), Children(grace=20) as one, Children(grace=20) as two:
        pair = [
            started(children, folder, name, **{forked.SHARED: str(folder)})
            for children, name in ((one, "a"), (two, "b"))
        ]
        for child in pair:
            until(says(child, f"__main__ ['--name', '{child.command.name}'] {child.command.name} True"))
        one.stop()
        assert [child.exit_status for child in pair] == [3, None]
        two_alone = pair[1].pid
        os.kill(_parent(two_alone), signal.SIGKILL)  # its system's own server, forked from the listening one
        until(lambda: pair[1].exit_status == -signal.SIGKILL)
        until(lambda: not alive(two_alone))
        again = two.restart(pair[1])
        until(lambda: again.log_tail().count("__main__") == 2)
    assert again.exit_status == 3
    assert (folder / "imports").read_text() == "once "


def test_a_system_outlives_the_server_that_listened(folder: Path) -> None:
    with Children(grace=20) as children:
        with listening(folder):
            child = started(children, folder, "one", **{forked.SHARED: str(folder)})
            until(says(child, "__main__"))
        assert child.exit_status is None
    assert child.exit_status == 3


def test_a_killed_system_takes_its_children_of_a_shared_server_along(folder: Path) -> None:
    variables = environment(folder) | {"WHO": "a", forked.SHARED: str(folder)}
    with listening(folder) as server:
        parent = subprocess.Popen(
            [sys.executable, "-c", SYSTEM, str(folder)], stdout=subprocess.PIPE, text=True, env=variables
        )
        assert parent.stdout is not None
        with parent, parent.stdout as output:
            pid = int(output.readline())
            parent.kill()
        until(lambda: not alive(pid))
        assert server.poll() is None


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
