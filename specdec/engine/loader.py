"""A local folder -> a decoder in memory, or one clear refusal; the network is never asked."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from specdec.engine.decoder import Decoder
from specdec.engine.facts import Facts, read_facts
from specdec.engine.folder import open_folder
from specdec.errors import ModelRefused

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

# What transformers raises for a folder it cannot read; anything else is a bug and keeps its traceback.
_UNREADABLE = (
    OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, ImportError,
    StrictDataclassError, SafetensorError,
)  # fmt: skip


def load_decoder(path: Path, dtype: str, device: str) -> tuple[Decoder, Facts]:
    """Load the folder's model in `dtype` onto `device`, with the facts about it.

    Raises:
        ModelRefused: the folder, the dtype or the device cannot be used; the message says which and why.
    """
    if dtype not in DTYPES:
        raise ModelRefused(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
    folder = open_folder(path)
    place = find_device(device)
    _refuse_rope(path, folder.config)
    model = _load_model(path, DTYPES[dtype]).to(place).eval()
    tokenizer = _try(path, "tokenizer", lambda: AutoTokenizer.from_pretrained(path, local_files_only=True))
    facts = read_facts(path, model, tokenizer, folder.fingerprint(dtype))
    return Decoder(model, facts.vocab_size, place), facts


def load_vocabulary(path: Path) -> dict[str, int]:
    """Token to id, of a folder's tokenizer alone.

    Raises:
        ModelRefused: there is no tokenizer that can be read.
    """
    tokenizer = _try(path, "tokenizer", lambda: AutoTokenizer.from_pretrained(path, local_files_only=True))
    ids: dict[str, int] = tokenizer.get_vocab()
    return ids


def find_device(device: str) -> torch.device:
    """The device of that name; "auto" is the accelerator when there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        raise ModelRefused(f"device {device!r} cannot be used: {error}") from error


def _load_model(path: Path, dtype: torch.dtype) -> Any:
    logging.disable_progress_bar()
    model, report = _try(
        path,
        "model",
        lambda: AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, attn_implementation="eager", local_files_only=True, output_loading_info=True
        ),
    )
    # transformers fills these with random numbers and goes on.
    if missing := sorted(report["missing_keys"]):
        raise ModelRefused(f"{path}: the weights lack {len(missing)} tensors, the first is {missing[0]}")
    return model


def _try(path: Path, what: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except _UNREADABLE as error:
        first_line = str(error).strip().partition("\n")[0]
        raise ModelRefused(f"{path}: the {what} cannot be loaded: {first_line}") from error


def _refuse_rope(path: Path, config: dict[str, Any]) -> None:
    """Refuse rotary frequencies that follow the longest sequence of the pass: they would couple sessions."""
    for scaling in _rope_settings(config):
        kind = scaling.get("rope_type", scaling.get("type"))
        if kind in {"dynamic", "longrope"}:
            raise ModelRefused(f"{path}: {kind} rotary embeddings change with the other sessions of a pass; not served")


def _rope_settings(config: dict[str, Any]) -> list[dict[str, Any]]:
    """The rotary settings, which are one object or one for each kind of layer."""
    found = [config.get(name) for name in ("rope_parameters", "rope_scaling")]
    objects = [entry for entry in found if isinstance(entry, dict)]
    return objects + [inner for entry in objects for inner in entry.values() if isinstance(inner, dict)]
