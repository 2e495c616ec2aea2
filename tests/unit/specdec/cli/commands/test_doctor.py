"""The doctor combines the services' checks and finds problems between services."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from specdec.cli.commands import doctor
from specdec.errors import ConfigError
from specdec.serving.checks import Check, Status

PRINT = "ab" * 32


def tokenizer(source: str, fingerprint: str) -> Check:
    return Check.ok("tokenizer", f"/cache/{'ef' * 32}/{source} loads, fingerprint {fingerprint}", source)


def shown(checks: list[Check], as_json: bool = False) -> str:
    console = Console(file=io.StringIO())
    doctor.show(console, checks, as_json)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_one_json_object_a_line_becomes_a_check() -> None:
    line = '{"name": "config", "status": "warn", "detail": "d", "remedy": "r"}'
    assert doctor.parse("drafter", f"noise\n{line}\n{{broken\n") == [Check("config", Status.WARN, "d", "r", "drafter")]


def test_equal_fingerprints_agree() -> None:
    (check,) = doctor.agreement([tokenizer("drafter", PRINT), tokenizer("verifier", PRINT)])
    assert check.status is Status.OK


def test_differing_fingerprints_fail_and_say_whose() -> None:
    (check,) = doctor.agreement([tokenizer("drafter", PRINT), tokenizer("verifier", "cd" * 32)])
    assert check.status is Status.FAIL
    assert "drafter has abab" in check.detail
    assert "verifier has cdcd" in check.detail
    assert check.remedy


def test_one_fingerprint_alone_says_nothing() -> None:
    assert doctor.agreement([tokenizer("drafter", PRINT)]) == []


def test_status_is_a_word_and_a_remedy_follows_what_is_not_ok() -> None:
    text = shown([Check("x", Status.OK, "fine", "unused", "a"), Check.fail("y", "bad", "mend it", "b")])
    assert "ok    a" in text
    assert "fail  b" in text
    assert "mend it" in text
    assert "unused" not in text
    assert "1 ok, 0 warn, 1 fail" in text


def test_json_holds_every_check() -> None:
    assert json.loads(shown([Check("x", Status.WARN, "d", "r", "a")], as_json=True)) == [
        {"source": "a", "name": "x", "status": "warn", "detail": "d", "remedy": "r"}
    ]


@pytest.mark.parametrize(("status", "failed"), [(Status.OK, False), (Status.WARN, False), (Status.FAIL, True)])
def test_only_a_failure_fails(status: Status, failed: bool) -> None:
    assert doctor.failed([Check("x", status, "")]) is failed


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
