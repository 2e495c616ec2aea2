"""Only the supported version of vLLM is served, and missing interfaces are named."""

from importlib import metadata

import pytest

from specdec.errors import ConfigError
from verifier_service.vllm import interfaces


def known_as(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: version)


def test_another_version_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    known_as("0.33.1", monkeypatch)
    with pytest.raises(ConfigError, match=r"vllm 0\.33\.1 is not served, only 0\.32\.\*"):
        interfaces.check_version()


@pytest.mark.parametrize("version", ["0.32.0", "0.32.0+cpu", "0.32.4"])
def test_every_release_of_the_series_is_served(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known_as(version, monkeypatch)
    interfaces.check_version()


def test_an_environment_without_vllm_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", absent)
    with pytest.raises(ConfigError, match="make vllm"):
        interfaces.check_version()


@pytest.mark.parametrize(
    ("path", "names", "lacking"),
    [
        ("no_such_module:Scheduler", (), "no_such_module:Scheduler"),
        ("queue:Queue.no_such_method", (), "queue:Queue.no_such_method"),
        ("queue:Queue.put", ("no_such_parameter",), "no_such_parameter"),
        ("dataclasses:Field", ("no_such_field",), "no_such_field"),
    ],
)
def test_what_is_not_there_is_named(
    path: str, names: tuple[str, ...], lacking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known_as("0.32.0", monkeypatch)
    with pytest.raises(ConfigError, match=lacking):
        interfaces.check_interfaces({"queue:Queue.put": ("item", "block"), path: names})


def test_all_changes_of_another_version_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    known_as("0.33.0", monkeypatch)
    parts = {"queue:Queue.put": ("item",), "queue:Queue.get": ("wait",), "no_such_module:Scheduler": ()}
    first, second, total = interfaces.changes(parts)
    assert "no 'wait' in queue:Queue.get" in first
    assert "no_such_module:Scheduler" in second
    assert total == "vllm 0.33.0: 2 of 3 parts changed; only 0.32.* is served"
