"""The list of running processes is complete or absent, and a kept folder has one owner at a time."""

import json
from pathlib import Path

import pytest

from specdec.cli.local.runtime import data_folder, state_file
from specdec.errors import ConfigError

GATEWAY = {"role": "gateway", "pid": 2, "http": "h:1", "grpc": "g:1"}


def test_it_lists_every_process_and_is_gone_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    redis = {"role": "redis", "pid": 1, "http": None, "grpc": None}
    with state_file(path) as write:
        write([GATEWAY])
        write([redis, GATEWAY])
        assert json.loads(path.read_text()) == [redis, GATEWAY]
        assert list(tmp_path.iterdir()) == [path]
    assert not any(tmp_path.iterdir())


def test_a_reader_never_sees_half_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.json"
    seen: list[bool] = []
    replace = Path.replace
    monkeypatch.setattr(Path, "replace", lambda self, to: (seen.append(path.exists()), replace(self, to))[1])
    with state_file(path) as write:
        write([GATEWAY])
        assert seen == [False]


def test_a_file_that_is_gone_already_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    with state_file(path) as write:
        write([GATEWAY])
        path.unlink()
    assert not any(tmp_path.iterdir())


def test_without_a_path_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with state_file(None) as write, data_folder(None):
        write([GATEWAY])
        assert not any(tmp_path.iterdir())


def test_a_kept_folder_is_private_and_has_one_owner_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "data"
    with data_folder(folder):
        assert folder.stat().st_mode & 0o077 == 0
        (folder / "kept").touch()
        with pytest.raises(ConfigError, match="another specdec up uses it"), data_folder(folder):
            pass
    with data_folder(folder):
        assert (folder / "kept").exists()


def test_a_kept_folder_that_is_a_file_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="--data"), data_folder(tmp_path / "file"):
        pass
