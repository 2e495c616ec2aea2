"""A drafter can vanish, hang, come back or never fit: clients see the same tokens and no error."""

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.e2e.conftest import ROOT, SPECDEC, System, environment, running_system, wait_until
from tests.tiny_models import make_tiny_model

LONG: dict[str, Any] = {"prompt": "import os\nimport sys\n\n\ndef main(", "temperature": 0, "max_tokens": 400}
EXTRAS = {"ignore_eos": True, "return_token_ids": True}


def client_of(system: System) -> OpenAI:
    return OpenAI(base_url=f"{system.http}/v1", api_key="none", max_retries=0, timeout=60)


def complete(client: OpenAI, **changes: Any) -> Any:
    speculation = {"speculation": changes.pop("speculation")} if "speculation" in changes else {}
    return client.completions.create(model="demo", extra_body=EXTRAS | speculation, **(LONG | changes))


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """A system whose drafter the tests of this file may hurt."""
    with running_system(tmp_path_factory.mktemp("fragile")) as running:
        yield running


def test_without_a_drafter_the_tokens_are_the_same_and_the_answer_says_so(tmp_path: Path, system: System) -> None:
    expected = complete(client_of(system), speculation={"mode": "off"}).choices[0].token_ids
    with running_system(tmp_path, "--drafters", "0") as alone:
        answer = complete(client_of(alone))
    assert answer.choices[0].token_ids == expected
    assert answer.speculation["fallbacks"]["drafter_unavailable"] > 0


def test_a_hung_drafter_does_not_stop_a_stream(fragile: System) -> None:
    drafter = fragile.one("drafter")["pid"]
    expected = complete(client_of(fragile), speculation={"mode": "off"}).choices[0].token_ids
    ids: list[int] = []
    try:
        for chunk in complete(client_of(fragile), stream=True):
            ids += chunk.choices[0].token_ids or []
            if 20 < len(ids) < 40:
                os.kill(drafter, signal.SIGSTOP)
    finally:
        os.kill(drafter, signal.SIGCONT)
    assert ids == expected


def test_a_killed_drafter_is_survived_and_a_restarted_one_is_used_again(fragile: System) -> None:
    client = client_of(fragile)
    expected = complete(client, speculation={"mode": "off"}).choices[0].token_ids
    ids: list[int] = []
    last: Any = None
    for chunk in complete(client, stream=True):
        if not ids:
            os.kill(fragile.one("drafter")["pid"], signal.SIGKILL)
        ids += chunk.choices[0].token_ids or []
        last = chunk
    assert ids == expected
    assert last.speculation["fallbacks"]["drafter_unavailable"] > 0

    command = r"specdec (serve drafter --config \S+)"
    wait_until(lambda: re.search(command, fragile.log.read_text()) is not None)
    restart = re.search(command, fragile.log.read_text())
    assert restart is not None
    restarted = subprocess.Popen([SPECDEC, *shlex.split(restart[1])], cwd=ROOT, env=environment())
    try:
        wait_until(lambda: complete(client, max_tokens=20).metrics is not None, seconds=60)
        again = complete(client)
        assert again.choices[0].token_ids == expected
        assert again.metrics["speculative_decoding"]["num_accepted_draft_tokens"] > 0
    finally:
        restarted.terminate()
        restarted.wait(timeout=30)


def test_a_drafter_with_another_tokenizer_is_refused_visibly(tmp_path: Path, system: System) -> None:
    foreign = tmp_path / "foreign"
    make_tiny_model(foreign, "llama", seed=0)
    expected = complete(client_of(system), speculation={"mode": "off"}, max_tokens=40).choices[0].token_ids
    with running_system(tmp_path, "--drafter", str(foreign)) as mismatched:
        answer = complete(client_of(mismatched), max_tokens=40)
        shown = mismatched.log.read_text()
    assert answer.choices[0].token_ids == expected
    assert answer.speculation["fallbacks"]["tokenizer_mismatch"] > 0
    assert "tokenizer" in shown
