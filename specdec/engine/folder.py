"""A model folder on disk: its required files, and the hash of their contents."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec.errors import ModelRefused
from specdec.rules.rng import SEED_VERSION

KV_VERSION = 1
"""Increased when the computation or the layout of keys and values changes."""

_SAFETENSORS = ("model.safetensors.index.json", "*.safetensors")
_PICKLES = ("pytorch_model.bin.index.json", "pytorch_model*.bin")
"""Name of the shard index, and pattern of the files, for each format of weights."""
_LONGEST_HEADER = 100_000_000
"""Longest header of a safetensors file, in bytes, as its format limits it."""
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json")


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A folder that has a configuration, weights and a tokenizer."""

    path: Path
    """Path of the folder."""
    config: dict[str, Any]
    """Content of config.json."""
    weights: tuple[Path, ...]
    """Paths of all weight files."""

    def fingerprint(self, dtype: str) -> str:
        """SHA-256 in hex of everything that determines KV and the tokens of a seed.

        It covers weights, configuration, dtype and versions.
        """
        digest = hashlib.sha256(
            f"{KV_VERSION} {SEED_VERSION} {dtype} {json.dumps(self.config, sort_keys=True)}\n".encode()
        )
        for file in self.weights:
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        return digest.hexdigest()


def open_folder(path: Path, *, allow_pickle: bool = False, encoder_decoder: bool = False) -> ModelFolder:
    """Open a model folder and check that its files are complete.

    Args:
        path: the folder.
        allow_pickle: whether the weights may be pickles, which can run code of their author.
        encoder_decoder: whether the model may be an encoder-decoder; else only a decoder.

    Raises:
        ModelRefused: the folder is not a complete model; the message names the file and the problem.
    """
    if not path.is_dir():
        raise ModelRefused(
            f"model folder {path} does not exist; a model is read from a local folder and never downloaded: "
            f"give the path of a folder with config.json, weights and tokenizer"
        )
    config = read_json(path / "config.json")
    if config.get("is_encoder_decoder") and not encoder_decoder:
        raise ModelRefused(
            f"{path}: {config.get('model_type')} is an encoder-decoder; only decoder-only models are served, "
            f"unless the backend is `transformers`"
        )
    if "model_type" not in config:
        raise ModelRefused(f"{path}: config.json names no model_type")
    if not any((path / name).is_file() for name in _TOKENIZERS):
        raise ModelRefused(f"{path}: no tokenizer ({', '.join(_TOKENIZERS)})")
    return ModelFolder(path, config, _weights(path, allow_pickle))


def read_json(file: Path) -> dict[str, Any]:
    """Read the object in a JSON file of a model folder.

    Raises:
        ModelRefused: the file is missing, cannot be read, or is not a JSON object.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelRefused(f"{file.parent}: {file.name} is missing") from None
    except (OSError, ValueError) as error:
        raise ModelRefused(f"{file.parent}: {file.name} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ModelRefused(f"{file.parent}: {file.name} is not a JSON object")
    return content


def _weights(path: Path, allow_pickle: bool) -> tuple[Path, ...]:
    if found := _files(path, *_SAFETENSORS):
        for file in found:
            _check_whole(file)
        return found
    pickles = _files(path, *_PICKLES)
    if pickles and allow_pickle:
        return pickles
    if pickles:
        raise ModelRefused(
            f"{path}: the weights are pickles ({pickles[0].name}), which can execute code of their author: "
            f"convert them to safetensors, or set model.allow_pickle if you trust the author"
        )
    raise ModelRefused(f"{path}: no weights ({_SAFETENSORS[1]})")


def _files(path: Path, index: str, pattern: str) -> tuple[Path, ...]:
    """The weight files of one format; empty if the folder has none."""
    if (path / index).is_file():
        return _shards(path, read_json(path / index))
    return tuple(sorted(path.glob(pattern)))


def _check_whole(file: Path) -> None:
    """Refuse a safetensors file that is shorter than its header says. The loader refuses a malformed header."""
    with file.open("rb") as content:
        length = int.from_bytes(content.read(8), "little")
        header = content.read(length) if length <= _LONGEST_HEADER else b""
    try:
        entries = json.loads(header).values() if len(header) == length else ()
        whole = 8 + length + max((each["data_offsets"][1] for each in entries if "data_offsets" in each), default=0)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        return
    size = file.stat().st_size
    if header and size < whole:
        raise ModelRefused(
            f"{file.parent}: {file.name} cannot be loaded: it is incomplete, {size} of {whole} bytes; fetch it again"
        )


def _shards(path: Path, index: dict[str, Any]) -> tuple[Path, ...]:
    shards = tuple(path / name for name in sorted(set(index.get("weight_map", {}).values())))
    for shard in shards:
        if not shard.is_file():
            raise ModelRefused(f"{path}: weights file {shard.name} is missing")
    return shards
