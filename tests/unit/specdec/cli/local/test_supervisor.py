"""Ended processes restart with growing pauses and a limit."""

import signal
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from specdec.cli.exit_codes import StartFailed
from specdec.cli.local.processes import Child, ChildCommand, Children
from specdec.cli.local.supervisor import RestartPolicy, Supervisor

POLICY = RestartPolicy(limit=3, pause=1.0, longest=3.0, settled=60.0)


class FakeChildren:
    """Children that end when a test says so."""

    def __init__(self, *names: str) -> None:
        self.all = [self._child(name) for name in names]
        self.starts = 0
        self.refusal: OSError | None = None

    def _child(self, name: str) -> Child:
        command = ChildCommand(name, name, (), Path(f"{name}.log"), f"start {name}")
        process = SimpleNamespace(pid=7, status=None)
        process.poll = lambda: process.status
        return Child(command, cast(Mapping[str, str], {}), cast(Any, process))

    def restart(self, ended: Child) -> Child:
        if self.refusal:
            raise self.refusal
        self.starts += 1
        self.all[self.all.index(ended)] = child = self._child(ended.command.name)
        return child

    def end(self, number: int = 0, status: int = 1) -> None:
        cast(Any, self.all[number].process).status = status


class Stage:
    def __init__(self, *names: str, policy: RestartPolicy = POLICY) -> None:
        self.children, self.said, self.now = FakeChildren(*names), list[str](), 0.0
        self.supervisor = Supervisor(cast(Children, self.children), policy, self.said.append, lambda: self.now)

    def starts_after(self) -> float:
        """Return the seconds until an ended process restarts, in steps of a quarter."""
        begin, before = self.now, self.children.starts
        self.supervisor.look()
        while self.children.starts == before:
            self.now += 0.25
            self.supervisor.look()
        return self.now - begin


def test_the_pause_doubles_to_its_maximum_and_each_end_and_start_is_logged() -> None:
    stage = Stage("a", "b")
    pauses = []
    for _ in range(3):
        stage.children.end(status=-signal.SIGKILL)
        pauses.append(stage.starts_after())
    assert pauses == [1.0, 2.0, 3.0]
    assert stage.said[0] == "a ended (killed by SIGKILL); it is started again in 1 s (its log: a.log)"
    assert stage.said[1] == "a is started again (pid 7)"


def test_after_the_last_try_it_stays_down_and_the_command_is_said() -> None:
    stage = Stage("a", "b")
    for _ in range(3):
        stage.children.end()
        stage.starts_after()
    stage.children.end()
    assert not stage.supervisor.look()
    stage.now += 1000
    assert not stage.supervisor.look()
    assert stage.said[-1].startswith("a ended (status 1), 4 times in a row; it stays down")
    assert "Start it again: start a" in stage.said[-1]


def test_one_that_has_run_for_long_begins_anew() -> None:
    stage = Stage("a")
    for _ in range(6):
        stage.children.end()
        assert stage.starts_after() == 1.0
        stage.now += POLICY.settled


def test_when_all_stay_down_it_is_over() -> None:
    stage = Stage("a", "b", policy=RestartPolicy(limit=0))
    stage.children.end(0)
    assert not stage.supervisor.look()
    stage.children.end(1)
    with pytest.raises(StartFailed, match="every process has ended"):
        stage.supervisor.look()


def test_a_start_that_fails_counts_as_an_end() -> None:
    stage = Stage("a", "b")
    stage.children.end()
    stage.supervisor.look()
    stage.children.refusal = OSError(28, "No space left on device")
    stage.now += 1.0
    assert not stage.supervisor.look()
    assert "No space left on device" in stage.said[-1]
    stage.children.refusal = None
    assert stage.starts_after() == 2.0
