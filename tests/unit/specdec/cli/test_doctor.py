"""The doctor puts the services' own checks together and sees what only shows between them."""

import io
import json
from pathlib import Path
from typing import Literal

import pytest
from rich.console import Console

from specdec.cli import doctor
from specdec.cli.doctor import Finding
from specdec.errors import ConfigError
from specdec.serving.checks import Line

PRINT = "ab" * 32


def tokenizer(source: str, fingerprint: str) -> Finding:
    return Finding(source, Line("tokenizer", "ok", f"/cache/{'ef' * 32}/{source} loads, fingerprint {fingerprint}"))


def shown(findings: list[Finding], as_json: bool = False) -> str:
    console = Console(file=io.StringIO())
    doctor.show(console, findings, as_json)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_one_json_object_a_line_becomes_a_check() -> None:
    line = '{"name": "config", "status": "warn", "detail": "d", "remedy": "r"}'
    found = doctor.parse("drafter", f"noise\n{line}\n{{broken\n")
    assert found == [Finding("drafter", Line("config", "warn", "d", "r"))]


def test_equal_fingerprints_agree() -> None:
    (finding,) = doctor.agreement([tokenizer("drafter", PRINT), tokenizer("verifier", PRINT)])
    assert finding.line.status == "ok"


def test_differing_fingerprints_fail_and_say_whose() -> None:
    (finding,) = doctor.agreement([tokenizer("drafter", PRINT), tokenizer("verifier", "cd" * 32)])
    assert finding.line.status == "fail"
    assert "drafter has abab" in finding.line.detail
    assert "verifier has cdcd" in finding.line.detail
    assert finding.line.remedy


def test_one_fingerprint_alone_says_nothing() -> None:
    assert doctor.agreement([tokenizer("drafter", PRINT)]) == []


def test_status_is_a_word_and_a_remedy_follows_what_is_not_ok() -> None:
    fine, bad = Line("x", "ok", "fine", "unused"), Line("y", "fail", "bad", "mend it")
    text = shown([Finding("a", fine), Finding("b", bad)])
    assert "ok    a" in text
    assert "fail  b" in text
    assert "mend it" in text
    assert "unused" not in text
    assert "1 ok, 0 warn, 1 fail" in text


def test_json_holds_every_check() -> None:
    assert json.loads(shown([Finding("a", Line("x", "warn", "d", "r"))], as_json=True)) == [
        {"source": "a", "name": "x", "status": "warn", "detail": "d", "remedy": "r"}
    ]


@pytest.mark.parametrize(("status", "failed"), [("ok", False), ("warn", False), ("fail", True)])
def test_only_a_failure_fails(status: Literal["ok", "warn", "fail"], failed: bool) -> None:
    assert doctor.failed([Finding("a", Line("x", status, ""))]) is failed


def test_a_folder_gives_each_file_its_role(tmp_path: Path) -> None:
    for name in ("drafter-1.yaml", "verifier.yaml", "gateway.yaml", "notes.txt"):
        (tmp_path / name).touch()
    found = doctor.subjects(tmp_path, {"drafter": [Path("x.yaml")]}, {})
    assert [(subject.role, subject.config.name) for subject in found] == [
        ("drafter", "x.yaml"),
        ("drafter", "drafter-1.yaml"),
        ("verifier", "verifier.yaml"),
        ("gateway", "gateway.yaml"),
    ]


def test_a_folder_without_configurations_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no"):
        doctor.subjects(tmp_path, {}, {})
