"""The protos are clean, and the committed code is what the generator produces from them."""

import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from specdec.protos.verifier.v1 import verifier_pb2

ROOT = Path(__file__).parents[2]
GENERATOR = ROOT / ".venv-proto" / "bin"
PROTOS = sorted(path.relative_to(ROOT) for path in (ROOT / "protos").rglob("*.proto"))


def _run(command: list[str], cwd: Path, path: Path) -> None:
    env = os.environ | {"PATH": f"{path}{os.pathsep}{os.environ['PATH']}"}
    result = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("arguments", [["lint"], ["format", "--diff", "--exit-code"]])
def test_buf_is_satisfied(arguments: list[str]) -> None:
    _run(["buf", *arguments], ROOT, Path(sys.executable).parent)


def test_what_the_last_release_wrote_is_still_read() -> None:
    _run(["buf", "breaking", "--against", "protos/released.binpb"], ROOT, Path(sys.executable).parent)


def test_a_field_that_is_gone_breaks_a_tier_of_another_version(tmp_path: Path) -> None:
    shutil.copy(ROOT / "buf.yaml", tmp_path)
    for proto in PROTOS:
        (tmp_path / proto).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / proto, tmp_path / proto)
    compare = ["buf", "breaking", "--against", str(ROOT)]
    _run(compare, tmp_path, Path(sys.executable).parent)
    drafter = tmp_path / "protos" / "drafter" / "v1" / "drafter.proto"
    text, count = re.subn(r"^  uint64 epoch = \d+;\n", "", drafter.read_text(), count=1, flags=re.MULTILINE)
    assert count
    drafter.write_text(text)
    with pytest.raises(AssertionError, match="Previously present field"):
        _run(compare, tmp_path, Path(sys.executable).parent)


def test_generated_code_is_fresh(tmp_path: Path) -> None:
    assert GENERATOR.exists(), "the generator's environment is missing: `make test` creates it"
    _run([str(GENERATOR / "python"), "protos/generate.py", str(tmp_path)], ROOT, GENERATOR)
    made = {path.relative_to(tmp_path) for path in tmp_path.rglob("*_pb2*")}
    kept = {path.relative_to(ROOT) for path in (ROOT / "specdec" / "protos").rglob("*_pb2*.py*")}
    kept = {path for path in kept if path.suffix in {".py", ".pyi"}}
    assert made == kept
    stale = [str(path) for path in sorted(made) if (tmp_path / path).read_text() != (ROOT / path).read_text()]
    assert not stale, "run `make proto`"


def test_messages_can_be_pickled() -> None:
    """Processes of one service exchange calls by pickle, which imports a class from the module that it names."""
    call = verifier_pb2.GenerateRequest(session_id="s")
    assert pickle.loads(pickle.dumps(call)) == call


def test_the_earlier_names_are_those_of_the_generated_modules() -> None:
    """`protos` is a package of several projects: here it has no code of its own, and it is not installed."""
    assert not list((ROOT / "protos").rglob("__init__.py"))
    for module in (ROOT / "specdec" / "protos").rglob("*_pb2*.py"):
        path = module.relative_to(ROOT / "specdec")
        name = ".".join(path.with_suffix("").parts)
        last = (ROOT / path).read_text().splitlines()[-1]
        assert last == f"from specdec.{name} import *  # noqa: F403"
