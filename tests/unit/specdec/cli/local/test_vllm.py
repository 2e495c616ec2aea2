"""`specdec up --backend vllm` runs only the verifiers on the interpreter of another environment."""

from pathlib import Path

import pytest

from specdec.cli.local import plan, vllm
from specdec.cli.local.launch import Folders, _command
from specdec.cli.settings import UpSettings
from specdec.errors import ConfigError


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """Interpreter of an environment that has vLLM."""
    (tmp_path / "lib/python3.11/site-packages/vllm").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    found = tmp_path / "bin" / "python"
    found.touch()
    return found


def settings(python: Path) -> UpSettings:
    return UpSettings.load(overrides={"backend": "vllm", "vllm_python": str(python), "sample": False})


def test_verifiers_run_in_that_environment_and_the_others_in_this_one(python: Path, tmp_path: Path) -> None:
    given = settings(python)
    addresses = plan.Addresses(*[[f"127.0.0.1:{port}"] for port in range(1, 7)])
    services = plan.services(given, addresses, "redis://127.0.0.1:1")
    assert {each.role: each.python for each in services} == {"drafter": None, "verifier": python, "gateway": None}
    (verifier,) = [each for each in services if each.role == "verifier"]
    assert verifier.config["backend"] == "vllm"
    command = _command(Folders(tmp_path, tmp_path), verifier)
    assert command.argv[:3] == (str(python), "-m", "verifier_service")
    assert command.preload == ()
    assert str(python) in command.restart


def test_the_native_engine_needs_no_other_interpreter() -> None:
    assert vllm.interpreter(UpSettings.load()) is None


def test_a_missing_environment_is_an_error_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="make vllm"):
        plan.check_models(settings(tmp_path / "python"))


def test_an_environment_without_vllm_is_refused(python: Path) -> None:
    (python.parents[1] / "lib/python3.11/site-packages/vllm").rmdir()
    with pytest.raises(ConfigError, match="without vLLM"):
        vllm.interpreter(settings(python))


def test_openmp_is_loaded_first_where_the_environment_has_it(python: Path) -> None:
    assert vllm.environment(python, {}) == {}
    library = python.parents[1] / "lib/libiomp5.so"
    library.touch()
    assert vllm.environment(python, {}) == {"LD_PRELOAD": str(library)}
    assert vllm.environment(python, {"LD_PRELOAD": "/a.so"}) == {"LD_PRELOAD": f"/a.so:{library}"}
    assert vllm.environment(python, {"LD_PRELOAD": str(library)}) == {}
