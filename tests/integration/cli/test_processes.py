"""Children end with their parent and in order, however the parent ends and even if they resist."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from specdec.cli.exit_codes import StartFailed
from specdec.cli.local import plan, valkey
from specdec.cli.local.launch import Folders, RunningService, start_store, wait_for_services, wait_for_store
from specdec.cli.local.processes import ChildCommand, Children
from specdec.cli.local.runtime import runtime_folder
from specdec.cli.local.signals import Stop, StopRequested

pytestmark = pytest.mark.integration

STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
)
MILD = (
    "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]); print('up', flush=True); "
    "signal.sigwait([signal.SIGTERM]); print('down', flush=True)"
)


def noting(path: Path, name: str) -> str:
    """Return a program that writes its name when it receives a termination signal."""
    return f"""
import signal, time
def end(*_):
    with open({str(path)!r}, "a") as order:
        order.write({name + " "!r})
    raise SystemExit
signal.signal(signal.SIGTERM, end)
print("up", flush=True)
while True:
    time.sleep(0.01)
"""


def command(folder: Path, name: str, code: str, role: str = "drafter") -> ChildCommand:
    return ChildCommand(name, role, (sys.executable, "-c", code), folder / f"{name}.log", "")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def says(folder: Path, name: str, word: str) -> Callable[[], bool]:
    log = folder / f"{name}.log"
    return lambda: log.exists() and word in log.read_text()


@pytest.mark.parametrize("nice", [0, 7])
@pytest.mark.parametrize("preload", [(), ("json",)], ids=["spawned", "forked"])
def test_a_child_lets_others_go_first_in_one_session(tmp_path: Path, preload: tuple[str, ...], nice: int) -> None:
    """Between sessions Linux may share the processors evenly, regardless of priorities."""
    asked, own = command(tmp_path, "a", ""), os.sched_getaffinity(0)
    module = (sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "0")
    left = own - {min(own)} if nice and len(own) > 1 else own
    with Children(grace=20) as children:
        child = children.start(replace(asked, argv=module, preload=preload, nice=nice), os.environ)
        until(lambda: (os.getpriority(os.PRIO_PROCESS, child.pid), os.sched_getaffinity(child.pid)) == (nice, left))
        assert os.getsid(child.pid) == os.getsid(0)
        assert os.getpgid(child.pid) == child.pid


def test_leaving_ends_every_child_and_asks_first(tmp_path: Path) -> None:
    with Children(grace=20) as children:
        child = children.start(command(tmp_path, "a", MILD), os.environ)
        until(says(tmp_path, "a", "up"))
    assert child.exit_status == 0
    assert "down" in child.log_tail()


LEAKS = """\
error: /models/x: the model cannot be loaded: file is cut short
nanobind: leaked 514 functions!
 - leaked function "__mul__"
 - ... skipped remainder
nanobind: this is likely caused by a reference counting issue in the binding code.
See https://nanobind.readthedocs.io/en/latest/refleaks.html
"""


def test_a_start_that_fails_shows_the_child_s_own_error_alone(tmp_path: Path) -> None:
    code = f"print('loading'); print({LEAKS!r}, end='', flush=True); raise SystemExit(2)"
    with Children() as children:
        child = children.start(command(tmp_path, "verifier-1", code), os.environ)
        service = plan.Service("verifier", "verifier-1", "127.0.0.1:9", "127.0.0.1:9", {})
        until(lambda: child.exit_status is not None)
        with pytest.raises(StartFailed) as failed:
            list(wait_for_services([RunningService(service, child)], Stop(), 1.0))
        assert (
            failed.value.message == "verifier-1 did not start: /models/x: the model cannot be loaded: file is cut short"
        )
        assert "nanobind" not in child.log_tail()
        assert "loading" in child.log_tail()


def test_a_child_that_will_not_end_is_killed(tmp_path: Path) -> None:
    with Children(grace=0.2) as children:
        child = children.start(command(tmp_path, "a", STUBBORN), os.environ)
        until(says(tmp_path, "a", "up"))
    assert child.exit_status == -signal.SIGKILL


def test_children_end_when_the_body_fails(tmp_path: Path) -> None:
    pids: list[int] = []

    def body() -> None:
        with Children(grace=1) as children:
            pids.append(children.start(command(tmp_path, "a", "import time; time.sleep(600)"), os.environ).pid)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        body()
    assert not alive(pids[0])


def test_the_role_started_last_ends_before_all_others(tmp_path: Path) -> None:
    with Children(grace=20) as children:
        for role in ("redis", "drafter", "verifier", "gateway"):
            children.start(command(tmp_path, role, noting(tmp_path / "order", role), role), os.environ)
            until(says(tmp_path, role, "up"))
    assert (tmp_path / "order").read_text().split()[0] == "gateway"
    assert sorted((tmp_path / "order").read_text().split()) == ["drafter", "gateway", "redis", "verifier"]


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's death signal is Linux's")
def test_a_parent_that_is_killed_takes_its_children_along(tmp_path: Path) -> None:
    parent = (
        "import os, sys, time\nfrom pathlib import Path\n"
        "from specdec.cli.local.processes import Children, ChildCommand\n"
        f"argv = (sys.executable, '-c', {STUBBORN!r})\n"
        f"child = Children().start(ChildCommand('a', 'a', argv, Path({str(tmp_path)!r}, 'a.log'), ''), os.environ)\n"
        "print(child.pid, flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process, process.stdout as output:
        pid = int(output.readline())
        until(says(tmp_path, "a", "up"))
        process.kill()
    until(lambda: not alive(pid))


def test_an_embedded_store_starts_in_a_private_folder_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with runtime_folder() as folder, Children() as children:
        assert folder.stat().st_mode & 0o077 == 0
        embedded = valkey.embed(valkey.resolve(), folder)
        store = start_store(children, Folders(folder, folder), embedded)
        wait_for_store(store, embedded.url, Stop())
        assert valkey.answers(embedded.url)
        assert not valkey.answers(embedded.url.replace("://:", "://:x"))
    assert not alive(store.pid)
    assert not any(tmp_path.iterdir())


def test_a_store_that_cannot_start_shows_what_it_said(tmp_path: Path) -> None:
    with Children() as children:
        broken = valkey.Embedded((str(valkey.resolve().path), str(tmp_path / "missing.conf")), "unix:///nowhere")
        store = start_store(children, Folders(tmp_path, tmp_path), broken)
        with pytest.raises(StartFailed, match=r"missing\.conf"):
            wait_for_store(store, broken.url, Stop())


def test_a_wait_ends_with_the_stop(tmp_path: Path) -> None:
    stop = Stop()
    stop.request()
    with Children(grace=1) as children:
        child = children.start(command(tmp_path, "a", "import time; time.sleep(600)"), os.environ)
        with pytest.raises(StopRequested):
            wait_for_store(child, "unix:///nowhere", stop)


def test_a_folder_whose_owner_was_killed_is_swept_and_a_held_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    abandoned = tmp_path / "specdec-up-dead"
    abandoned.mkdir()
    (abandoned / "lock").touch()
    with runtime_folder() as first:
        assert not abandoned.exists()
        with runtime_folder() as second:
            assert first.exists()
            assert second != first
    assert not any(tmp_path.iterdir())
