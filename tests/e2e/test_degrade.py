"""A drafter can hang, be killed, be restarted or have a wrong tokenizer: the tokens do not change."""

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from specdec.cli.local.plan import PRELOAD
from specdec.cli.local.processes import ChildCommand, Children
from specdec.cli.local.serve import command_of
from tests.e2e.clients import client_of
from tests.e2e.system import ROOT, SPECDEC, START_SECONDS, System, environment, running_system, wait_until
from tests.support.tiny_models import make_tiny_model

LONG: dict[str, Any] = {"prompt": "import os\nimport sys\n\n\ndef main(", "temperature": 0, "max_tokens": 400}
DRAFTED = {"gamma": 4}
EXTRAS = {"ignore_eos": True, "return_token_ids": True}
SHORT = 100
"""Tokens of an answer during which the system is not disturbed."""


def complete(client: OpenAI, **changes: Any) -> Any:
    speculation = {"speculation": changes.pop("speculation")} if "speculation" in changes else {}
    return client.completions.create(model="demo", extra_body=EXTRAS | speculation, **(LONG | changes))


def drafts(system: System) -> bool:
    """Whether the system uses drafts for an answer. The request is sent after the system has met a drafter."""
    if not system.has_ready_drafters():
        return False
    return complete(client_of(system), max_tokens=20, speculation=DRAFTED).metrics is not None


def offered(system: System) -> str:
    """Return the arguments of the last command that `specdec up` prints for starting a drafter."""
    command = r"specdec (serve drafter --config \S+)"
    wait_until(lambda: re.search(command, system.log.read_text()) is not None)
    return str(re.findall(command, system.log.read_text())[-1])


@contextmanager
def started_by_hand(system: System) -> Iterator[None]:
    """Run a drafter, started by the command that `specdec up` prints for it."""
    drafter = subprocess.Popen([SPECDEC, *shlex.split(offered(system))], cwd=ROOT, env=environment())
    try:
        yield
    finally:
        drafter.terminate()
        drafter.wait(timeout=START_SECONDS)


@contextmanager
def forked_again(system: System) -> Iterator[None]:
    """Run the drafter that this command would start, forked after the imports that all systems share."""
    command = command_of("drafter", Path(shlex.split(offered(system))[-1]))
    with Children(START_SECONDS) as children:
        given = ChildCommand("drafter", "drafter", command, Path(os.devnull), "", PRELOAD["drafter"])
        children.start(given, environment())
        yield


@pytest.fixture(scope="module")
def expected(system: System) -> list[int]:
    """Return the tokens of the long answer. Each shorter answer is a prefix of it."""
    return list(complete(client_of(system), speculation={"mode": "off"}).choices[0].token_ids)


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """Run a system whose drafter the tests of this file may disturb and restart."""
    with running_system(tmp_path_factory.mktemp("fragile"), "--restarts", "0") as running:
        yield running


def test_without_a_drafter_the_tokens_are_the_same_until_one_joins(tmp_path: Path, expected: list[int]) -> None:
    with running_system(tmp_path, "--drafters", "0") as alone:
        client = client_of(alone)
        answer = complete(client, max_tokens=SHORT, speculation=DRAFTED)
        with started_by_hand(alone):
            wait_until(lambda: drafts(alone))
            joined = complete(client, max_tokens=SHORT, speculation=DRAFTED)
    assert answer.choices[0].token_ids == joined.choices[0].token_ids == expected[:SHORT]
    assert answer.speculation["fallbacks"]["no_match"] > 0
    assert joined.metrics["speculative_decoding"]["num_accepted_draft_tokens"] > 0


def test_a_hung_drafter_does_not_stop_a_stream(fragile: System, expected: list[int]) -> None:
    drafter = fragile.one("drafter")["pid"]
    ids: list[int] = []
    try:
        for chunk in complete(client_of(fragile), stream=True):
            ids += chunk.choices[0].token_ids or []
            if len(ids) > 20:
                os.kill(drafter, signal.SIGSTOP)
    finally:
        os.kill(drafter, signal.SIGCONT)
    assert ids == expected


def test_a_killed_drafter_is_survived_and_a_restarted_one_is_used_again(fragile: System, expected: list[int]) -> None:
    client = client_of(fragile)
    ids: list[int] = []
    last: Any = None
    for chunk in complete(client, stream=True, speculation=DRAFTED):
        if not ids:
            os.kill(fragile.one("drafter")["pid"], signal.SIGKILL)
        ids += chunk.choices[0].token_ids or []
        last = chunk
    assert ids == expected
    assert last.speculation["fallbacks"]["drafter_unavailable"] > 0

    with forked_again(fragile):
        wait_until(lambda: drafts(fragile))
        again = complete(client, max_tokens=SHORT, speculation=DRAFTED)
    assert again.choices[0].token_ids == expected[:SHORT]
    assert again.metrics["speculative_decoding"]["num_accepted_draft_tokens"] > 0


def test_a_drafter_with_another_tokenizer_is_refused_visibly(tmp_path: Path, expected: list[int]) -> None:
    foreign = tmp_path / "foreign"
    make_tiny_model(foreign, "llama", seed=0)
    with running_system(tmp_path, "--drafter", str(foreign)) as mismatched:
        client = client_of(mismatched)

        def is_refused() -> bool:
            answer = complete(client, max_tokens=40, speculation=DRAFTED)
            assert answer.choices[0].token_ids == expected[:40]
            return answer.speculation["fallbacks"].get("tokenizer_mismatch", 0) > 0

        wait_until(is_refused)
        wait_until(lambda: "tokenizer" in mismatched.log.read_text())
