"""`specdec up` as a whole, with stand-ins for the services: output, files it leaves, and exits."""

import io
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from redis import Redis
from rich.console import Console

from specdec.cli.commands.up import Up
from specdec.cli.exit_codes import StartFailed, Unreachable
from specdec.cli.local import health, launch, plan, valkey
from specdec.cli.local.signals import Stop, StopRequested, stop_on_signals
from specdec.cli.settings import UpSettings
from specdec.errors import ConfigError
from tests.support.addresses import NEEDS_IPV6

pytestmark = pytest.mark.integration

STAND_IN = Path(__file__).with_name("stand_in.py")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Run:
    """One run of the command in this thread, controlled from another thread."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        anywhere = dict.fromkeys(
            ("http", "grpc", "drafter_address", "verifier_address", "drafter_metrics", "verifier_metrics"),
            "127.0.0.1:0",
        )
        for part in ("target", "drafter", "broken"):
            (folder / part).mkdir(exist_ok=True)
            (folder / part / "config.json").touch()
        self.scratch = folder / "scratch"
        self.state = folder / "state.json"
        models = {"target": folder / "target", "drafter": folder / "drafter"}
        given = {**anywhere, **models, "redis_url": "", "state": self.state, "sample": False, **changes}
        self.settings = UpSettings(**given)
        self.stop = Stop()
        self.output = io.StringIO()
        self.entries: list[dict[str, Any]] = []
        self._failure: BaseException | None = None
        self._over = False

    @property
    def said(self) -> str:
        return self.output.getvalue()

    def listed(self) -> list[dict[str, Any]]:
        """Return the contents of the state file."""
        found: list[dict[str, Any]] = json.loads(self.state.read_text())
        return found

    def gateway(self) -> dict[str, Any]:
        """Return the configuration of the gateway."""
        (config,) = self.scratch.glob("*/gateway-1.yaml")
        found: dict[str, Any] = yaml.safe_load(config.read_text())
        return found

    def store(self, which: Literal["sessions", "kv"] = "sessions") -> Redis:
        """Return a client of a store."""
        config = self.gateway()
        return Redis.from_url(config["redis_url"] if which == "sessions" else config["kv"]["redis_url"])

    def answers(self) -> bool:
        return valkey.answers(self.gateway()["redis_url"])

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert not self._over, "the command has returned"
            assert time.monotonic() < deadline, self.said
            time.sleep(0.02)

    def go(self, steps: Callable[["Run"], None] = lambda run: None) -> None:
        """Wait until the system is healthy, take the steps, then stop."""

        def steer() -> None:
            try:
                self.until(self.state.exists)
                self.entries = json.loads(self.state.read_text())
                steps(self)
            except BaseException as failure:  # noqa: BLE001  # told by the thread that waits
                self._failure = failure
            finally:
                self.stop.request()

        steering = threading.Thread(target=steer, daemon=True)
        steering.start()
        try:
            Up(Console(file=self.output), self.settings, self.stop).run()
        finally:
            self._over = True
            steering.join()
        if self._failure:
            raise self._failure

    def leaves_nothing(self) -> bool:
        gone = not any(alive(entry["pid"]) for entry in self.entries)
        return gone and not any(self.scratch.iterdir()) and not self.state.exists()


@pytest.fixture(autouse=True)
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    monkeypatch.setattr(launch, "command_of", lambda role, config: (sys.executable, str(STAND_IN), role, str(config)))


def test_all_is_healthy_before_the_state_says_so_and_gone_at_the_end(tmp_path: Path) -> None:
    run = Run(tmp_path, drafters=2)
    run.go()
    assert [entry["role"] for entry in run.entries] == [
        "redis",
        "redis-kv",
        "drafter",
        "drafter",
        "verifier",
        "gateway",
    ]
    assert run.entries[0]["grpc"] is run.entries[1]["grpc"] is None
    for entry in run.entries[2:]:
        assert entry["grpc"] in run.said
        assert f"http://{entry['http']}/metrics" in run.said
    assert run.leaves_nothing()


@NEEDS_IPV6
def test_every_address_may_be_of_ipv6(tmp_path: Path) -> None:
    names = ("http", "grpc", "drafter_address", "verifier_address", "drafter_metrics", "verifier_metrics")
    run = Run(tmp_path, **dict.fromkeys(names, "[::1]:0"))
    run.go()
    for entry in run.entries[2:]:
        assert entry["grpc"].startswith("[::1]:")
        assert entry["grpc"] in run.said
        assert f"http://{entry['http']}/metrics" in run.said
        assert entry["http"].startswith("[::1]:")
    assert run.leaves_nothing()


def test_a_refused_drafter_is_said(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.go()
    assert "warning: verifier-1 has no use of drafter" in run.said
    assert "another tokenizer" in run.said


def test_a_child_that_dies_is_started_again_at_the_same_addresses_and_said(tmp_path: Path) -> None:
    def kill_the_drafter(run: Run) -> None:
        before = next(entry for entry in run.entries if entry["role"] == "drafter")
        os.kill(before["pid"], signal.SIGKILL)
        run.until(lambda: "drafter-1 is started again" in run.said)
        assert "drafter-1 ended (killed by SIGKILL); it is started again in 0.5 s" in run.said
        run.until(lambda: all(entry["pid"] != before["pid"] for entry in run.listed()))
        after = next(entry for entry in run.listed() if entry["role"] == "drafter")
        assert alive(after["pid"])
        assert {**after, "pid": 0} == {**before, "pid": 0}
        run.until(lambda: health.grpc_serving(after["grpc"]))
        run.entries = run.listed()

    run = Run(tmp_path)
    run.go(kill_the_drafter)
    assert run.leaves_nothing()


def test_the_session_store_is_started_again_with_what_it_had(tmp_path: Path) -> None:
    def kill(run: Run) -> None:
        with run.store() as client:
            client.set("kept", "yes")
        os.kill(run.entries[0]["pid"], signal.SIGKILL)
        run.until(lambda: "redis-1 is started again" in run.said and run.answers())
        with run.store() as client:
            assert client.get("kept") == b"yes"
        run.entries = run.listed()

    run = Run(tmp_path, drafters=0)
    run.go(kill)
    assert run.leaves_nothing()


def test_without_restarts_a_dead_child_is_one_line_with_its_command(tmp_path: Path) -> None:
    def kill_the_drafter(run: Run) -> None:
        drafter = next(entry for entry in run.entries if entry["role"] == "drafter")
        os.kill(drafter["pid"], signal.SIGKILL)
        run.until(lambda: "drafter-1 ended" in run.said)
        assert all(alive(entry["pid"]) for entry in run.entries if entry["role"] != "drafter")
        (line,) = [line for line in run.said.splitlines() if "drafter-1 ended" in line]
        assert "SIGKILL" in line
        config = line.split("specdec serve drafter --config ")[1].split()[0]
        assert Path(config).is_file()

    run = Run(tmp_path, restarts=0)
    run.go(kill_the_drafter)
    assert run.leaves_nothing()


def test_when_nothing_is_left_it_ends(tmp_path: Path) -> None:
    def kill_all(run: Run) -> None:
        for entry in run.entries:
            os.kill(entry["pid"], signal.SIGKILL)
        run.until(lambda: run.said.count(" ended (") == len(run.entries))

    run = Run(tmp_path, restarts=0)
    with pytest.raises(StartFailed, match="every process has ended"):
        run.go(kill_all)
    assert run.leaves_nothing()


def test_sessions_outlive_the_command_in_a_data_folder(tmp_path: Path) -> None:
    def write(run: Run) -> None:
        with run.store() as client:
            client.set("kept", "yes")

    def read(run: Run) -> None:
        with run.store() as client:
            assert client.get("kept") == b"yes"

    data = tmp_path / "data"
    first = Run(tmp_path, drafters=0, data=data)
    first.go(write)
    assert first.leaves_nothing()
    assert data.stat().st_mode & 0o077 == 0
    assert str(data) in first.said
    again = Run(tmp_path, drafters=0, data=data)
    again.go(read)
    assert again.leaves_nothing()


def test_the_kv_store_is_bounded_evicts_and_writes_nothing(tmp_path: Path) -> None:
    def look(run: Run) -> None:
        with run.store("kv") as client:
            found = client.info()
        assert found["maxmemory"] == 32 * 2**20
        assert found["maxmemory_policy"] == "allkeys-lru"
        assert found["aof_enabled"] == 0
        assert "redis-kv-1 is healthy" in run.said

    Run(tmp_path, drafters=0, kv_memory="32MiB").go(look)


def test_without_kv_there_is_one_store(tmp_path: Path) -> None:
    def look(run: Run) -> None:
        assert [entry["role"] for entry in run.entries] == ["redis", "verifier", "gateway"]
        assert run.gateway()["kv"] == {"redis_url": ""}

    Run(tmp_path, drafters=0, kv=False).go(look)


def test_a_start_that_fails_half_way_shows_the_log_and_leaves_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path, drafter=tmp_path / "broken")
    with pytest.raises(StartFailed, match=r"drafter-1 ended with status 1.*\n.*this model cannot be loaded"):
        run.go()
    assert not run.state.exists()
    assert run.leaves_nothing()


def test_a_stop_during_the_start_leaves_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.stop.request()
    with pytest.raises(StopRequested):
        Up(Console(file=run.output), run.settings, run.stop).run()
    assert run.leaves_nothing()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_either_signal_is_the_end(number: signal.Signals) -> None:
    with stop_on_signals() as stop:
        assert not stop.wait(0)
        os.kill(os.getpid(), number)
        assert stop.wait(5)
        with pytest.raises(StopRequested):
            stop.check()


def test_logs_stay_in_a_folder_of_the_users(tmp_path: Path) -> None:
    run = Run(tmp_path, drafters=0, log_dir=tmp_path / "logs")
    run.go()
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == [
        "gateway-1.log",
        "redis-1.log",
        "redis-kv-1.log",
        "verifier-1.log",
    ]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"target": Path("no/such")}, "no/such"),
        ({"state": Path("no/such/state.json")}, "no such folder"),
        ({"state": Path("docs")}, "is a folder"),
    ],
)
def test_a_mistake_is_found_before_anything_is_started(
    tmp_path: Path, changes: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "start_store", pytest.fail)
    with pytest.raises(ConfigError, match=said):
        Run(tmp_path, **changes).go()


def test_a_silent_store_is_unreachable_and_its_password_stays_private(tmp_path: Path) -> None:
    run = Run(tmp_path, redis_url="redis://:secret@127.0.0.1:1/0")
    with pytest.raises(Unreachable) as caught:
        Up(Console(file=run.output), run.settings, run.stop).run()
    assert "127.0.0.1:1" in caught.value.message
    assert "secret" not in caught.value.message


@pytest.mark.parametrize("url", ["http://:secret@h", "redis://:secret@h:port"])
def test_a_url_that_is_none_of_redis_is_a_mistake(tmp_path: Path, url: str) -> None:
    run = Run(tmp_path, redis_url=url)
    with pytest.raises(ConfigError, match="Redis URL") as caught:
        Up(Console(file=run.output), run.settings, run.stop).run()
    assert "secret" not in caught.value.message


def test_configurations_are_for_their_owner_alone(tmp_path: Path) -> None:
    def look(run: Run) -> None:
        (runtime,) = run.scratch.iterdir()
        files = list(runtime.glob("*.yaml"))
        assert len(files) == len(plan.MODULES)
        assert all(path.stat().st_mode & 0o077 == 0 for path in [runtime, *files])

    run = Run(tmp_path)
    run.go(look)
