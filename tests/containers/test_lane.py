"""`.ci/containers` checks every new commit, and all commits if the new ones are unknown."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from images.__main__ import ROOT

SKIPPED, TRIED = "nothing has changed", "make images"
STANDINS = {"id": "echo 0", "make": 'echo "make $*"', "unshare": "true", "podman": "true"}
"""Programs put at the front of PATH for the lane, so that it builds nothing and needs no root."""


def _git(folder: Path, *arguments: str) -> str:
    author = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    done = subprocess.run(("git", *author, *arguments), cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def _commit(folder: Path, name: str) -> str:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("changed\n")
    _git(folder, "add", "--all")
    _git(folder, "commit", "--quiet", "--message", name)
    return _git(folder, "rev-parse", "HEAD")


def _lane(folder: Path, **environment: str) -> str:
    path = f"{folder.parent / 'bin'}:{os.environ['PATH']}"
    command = ("bash", ".ci/containers")
    kept = {key: value for key, value in os.environ.items() if key != "BASE"}
    return subprocess.run(
        command, cwd=folder, env=kept | {"PATH": path} | environment, check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with the lane in its first commit."""
    folder = tmp_path / "repository"
    (folder / ".ci").mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "containers", folder / ".ci")
    (tmp_path / "bin").mkdir()
    for name, line in STANDINS.items():
        program = tmp_path / "bin" / name
        program.write_text(f"#!/bin/sh\n{line}\n")
        program.chmod(0o755)
    _git(folder, "init", "--quiet", "--initial-branch=main")
    _commit(folder, "README.md")
    return folder


@pytest.mark.parametrize("name", ["compose.yaml", "gateway/Dockerfile", "helm/values.yaml", "specdec/serving/tls.py"])
def test_an_image_is_built_if_any_new_commit_touches_it(repository: Path, name: str) -> None:
    landed = _commit(repository, "docs/one.md")
    _git(repository, "update-ref", "refs/remotes/origin/main", landed)
    _commit(repository, name)
    _commit(repository, "docs/two.md")
    assert TRIED in _lane(repository)


def test_nothing_is_built_if_no_new_commit_touches_an_image(repository: Path) -> None:
    _commit(repository, "compose.yaml")
    landed = _commit(repository, "docs/one.md")
    _git(repository, "update-ref", "refs/remotes/origin/main", landed)
    _commit(repository, "docs/two.md")
    assert SKIPPED in _lane(repository)


def test_commits_that_landed_meanwhile_are_not_new(repository: Path) -> None:
    _git(repository, "switch", "--quiet", "--create", "landed")
    _git(repository, "update-ref", "refs/remotes/origin/main", _commit(repository, "compose.yaml"))
    _git(repository, "switch", "--quiet", "main")
    _commit(repository, "docs/one.md")
    assert SKIPPED in _lane(repository)


def test_a_named_commit_is_compared_with(repository: Path) -> None:
    before = _commit(repository, "docs/one.md")
    _commit(repository, "compose.yaml")
    after = _commit(repository, "docs/two.md")
    _commit(repository, "docs/three.md")
    assert TRIED in _lane(repository, BASE=before)
    assert SKIPPED in _lane(repository, BASE=after)


@pytest.mark.parametrize("base", ["", "no-such-commit"])
def test_the_images_are_built_if_the_new_commits_are_unknown(repository: Path, base: str) -> None:
    _commit(repository, "docs/one.md")
    assert TRIED in _lane(repository, BASE=base)


def test_the_images_are_built_if_the_landed_commit_is_the_one_at_hand(repository: Path) -> None:
    _git(repository, "update-ref", "refs/remotes/origin/main", _commit(repository, "docs/one.md"))
    assert TRIED in _lane(repository)
