"""A tier of the last release works between current tiers: drafts are used, and no token changes."""

import io
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from specdec.cli.local.plan import Role
from specdec.cli.local.serve import command_of
from tests.e2e.system import ROOT, START_SECONDS, alive, environment, running_system, wait_until

PACKAGES = ("protos", "specdec", "verifier_service", "drafter_service")
REQUEST = {"model": "demo", "prompt": "def main(", "max_tokens": 24, "temperature": 0, "return_token_ids": True}


def git(*arguments: str) -> str:
    """Return the output of git, or "" if it fails or this is not a checkout."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def last_release() -> str:
    """Return the commit in AGAINST, as in `make breaking`, or the last tag, or the parent of the last change."""
    changed = git("log", "--first-parent", "-1", "--format=%H", "--", *PACKAGES)
    named = os.environ.get("AGAINST") or git("describe", "--tags", "--abbrev=0") or f"{changed}^"
    return git("rev-parse", "--verify", f"{named}^{{commit}}")


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the packages of the last release."""
    commit = last_release()
    if not commit:
        pytest.skip("the last release is not in this clone: fetch its tag, or the history")
    archive = subprocess.run(["git", "archive", commit, *PACKAGES], cwd=ROOT, check=True, capture_output=True).stdout
    folder = tmp_path_factory.mktemp("older")
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        packed.extractall(folder, filter="data")
    return folder


@contextmanager
def from_the_tree(older: Path, role: Role, entry: dict[str, Any]) -> Iterator[None]:
    """Replace a process, inside the context, by one of another tree with the same configuration."""
    log = Path(f"/proc/{entry['pid']}/fd/1").readlink()
    command = command_of(role, log.parents[1] / f"{log.stem}.yaml")
    variables = environment() | {"PYTHONPATH": str(older)}
    package = command[command.index("-m") + 1]
    loaded = subprocess.check_output(
        [sys.executable, "-c", f"import {package}, specdec; print({package}.__file__, specdec.__file__)"],
        cwd=older,
        env=variables,
        text=True,
    )
    assert all(Path(path).is_relative_to(older) for path in loaded.split()), loaded
    os.kill(entry["pid"], signal.SIGTERM)
    wait_until(lambda: not alive(entry["pid"]), 60)
    process = subprocess.Popen(command, cwd=older, env=variables, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def answer(client: httpx2.Client) -> tuple[list[int], int]:
    """Return the tokens of one answer and the number of its accepted drafts."""
    reply = client.post("/v1/completions", json=REQUEST)
    assert reply.status_code == 200, reply.text
    body = reply.json()
    drafted = body["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"] if body["metrics"] else 0
    return body["choices"][0]["token_ids"], drafted


@pytest.mark.parametrize("role", ["verifier", "drafter"])
def test_a_tier_of_the_last_release_works_between_those_of_this_one(role: Role, older: Path, tmp_path: Path) -> None:
    with (
        running_system(tmp_path, "--restarts", "0", "--no-kv") as system,
        httpx2.Client(base_url=system.http, timeout=START_SECONDS, verify=False) as client,
    ):
        expected, _ = answer(client)

        def drafts_come() -> bool:
            tokens, drafted = answer(client)
            assert tokens == expected
            return drafted > 0

        wait_until(drafts_come, START_SECONDS)
        with from_the_tree(older, role, system.one(role)):
            wait_until(system.has_ready_verifiers, START_SECONDS)
            wait_until(lambda: system.has_ready_drafters() and drafts_come(), START_SECONDS)
