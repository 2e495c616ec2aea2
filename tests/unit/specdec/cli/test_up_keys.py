"""`specdec up` reports who has access before it starts anything."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from specdec.cli.commands.up import Up, check_keys
from specdec.cli.local.signals import Stop
from specdec.cli.settings import UpSettings
from specdec.errors import ConfigError


def said(**settings: object) -> list[str]:
    lines: list[str] = []
    check_keys(UpSettings(**settings), lines.append)  # type: ignore[arg-type]
    return lines


def test_an_address_that_others_reach_is_warned_of_unless_there_are_keys(tmp_path: Path) -> None:
    (warning,) = said(http="0.0.0.0:8000")
    assert warning.startswith("WARNING: every client that reaches 0.0.0.0:8000 is served")
    (tmp_path / "keys").write_text("")
    assert said(http="0.0.0.0:8000", api_keys=tmp_path / "keys") == []
    assert said() == []


def test_a_missing_file_of_keys_is_named_before_anything_is_started(tmp_path: Path) -> None:
    console = Console(file=io.StringIO())
    with pytest.raises(ConfigError, match=r"--api-keys .*/none"):
        Up(console, UpSettings(api_keys=tmp_path / "none"), Stop()).run()
