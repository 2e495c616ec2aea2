"""The state file is whole or not there."""

import json
from pathlib import Path

import pytest

from specdec.cli import state
from specdec.cli.state import Entry


def test_it_lists_every_process(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    state.write(path, [Entry("redis", 1, None, None), Entry("gateway", 2, "h:1", "g:1")])
    assert json.loads(path.read_text()) == [
        {"role": "redis", "pid": 1, "http": None, "grpc": None},
        {"role": "gateway", "pid": 2, "http": "h:1", "grpc": "g:1"},
    ]
    assert list(tmp_path.iterdir()) == [path]


def test_a_reader_never_sees_half_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.json"
    seen: list[bool] = []
    replace = Path.replace
    monkeypatch.setattr(Path, "replace", lambda self, to: (seen.append(path.exists()), replace(self, to))[1])
    state.write(path, [Entry("gateway", 2, None, None)])
    assert seen == [False]


def test_removing_what_is_not_there_is_nothing(tmp_path: Path) -> None:
    state.remove(tmp_path / "state.json")
    assert not any(tmp_path.iterdir())
