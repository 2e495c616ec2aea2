"""The environment of services, however they are started."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from specdec.cli.local import launch, serve
from specdec.cli.local.plan import Service
from specdec.cli.local.processes import ChildCommand, Children

SPIN = "GOMP_SPINCOUNT"


class Recorded:
    """Records the environments of children instead of starting them."""

    def __init__(self) -> None:
        self.environments: list[Mapping[str, str]] = []

    def start(self, command: ChildCommand, environment: Mapping[str, str]) -> None:
        self.environments.append(environment)


@pytest.mark.parametrize(("inherited", "expected"), [(None, "1000"), ("7", "7")])
def test_threads_of_a_service_sleep_soon_unless_the_caller_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inherited: str | None, expected: str
) -> None:
    monkeypatch.delenv(SPIN, raising=False)
    if inherited is not None:
        monkeypatch.setenv(SPIN, inherited)
    replaced: list[Any] = []
    monkeypatch.setattr(os, "execve", lambda *given: replaced.append(given))
    recorded, service = Recorded(), Service("verifier", "verifier-1", "127.0.0.1:1", "127.0.0.1:2", {})
    launch.start_service(cast("Children", recorded), launch.Folders(tmp_path, tmp_path), service)
    serve.serve("verifier", tmp_path / "verifier.yaml")
    assert [each[SPIN] for each in (*recorded.environments, replaced[0][2])] == [expected] * 2
