"""Load a local model folder: the decoder, and the facts about the model that the rest of the system needs."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer
from transformers.utils import logging

from specdec.engine.decoder import Decoder
from specdec.engine.end_tokens import end_token_ids, named_end_ids
from specdec.engine.folder import open_folder
from specdec.errors import ModelRefused
from specdec.sampling import vocabulary

RELATIVE_CONTEXT = 4096
"""Context length of a model with relative positions, such as T5, which has no limit of its own."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

# Exceptions of transformers for a folder that it cannot read; any other exception is a bug and keeps its traceback.
_UNREADABLE = (
    OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, ImportError,
    StrictDataclassError, SafetensorError,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts about a model for the rest of the system."""

    name: str
    """Name of the model folder."""
    vocab_size: int
    """Number of valid ids, 0..vocab_size-1, as defined by the tokenizer."""
    context_length: int
    """Largest number of positions in a session."""
    end_token_ids: frozenset[int]
    """Ids that end a generation."""
    tokenizer_hash: str
    """Fingerprint of the tokenizer's vocabulary, from `specdec.sampling.vocabulary`."""
    fingerprint: str
    """SHA-256 in hex of everything that determines keys and values, from `ModelFolder.fingerprint`."""
    turn_end_ids: frozenset[int] = frozenset()
    """End ids that only the chat template names, as the end of a turn."""


def load_decoder(path: Path, dtype: str, device: str, *, allow_pickle: bool = False) -> tuple[Decoder, ModelFacts]:
    """Load the folder's model in `dtype` onto `device`, with its facts, without network access.

    Weights are safetensors; with `allow_pickle`, pickles are loaded if there are no safetensors.

    Raises:
        ModelRefused: the folder, the dtype or the device cannot be used; the message says which and why.
    """
    if dtype not in DTYPES:
        raise ModelRefused(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
    folder = open_folder(path, allow_pickle=allow_pickle)
    found = find_device(device)
    _refuse_rope(path, folder.config)
    model = _load_model(path, DTYPES[dtype], allow_pickle).to(found).eval()
    tokenizer = _try(path, "tokenizer", lambda: AutoTokenizer.from_pretrained(path, local_files_only=True))
    facts = read_facts(path, model, tokenizer, folder.fingerprint(dtype))
    return Decoder(model, facts.vocab_size, found), facts


def load_ends(path: Path, dtype: str, device: str, *, allow_pickle: bool = False) -> tuple[Decoder, ModelFacts, int]:
    """Load the first and the last layer of the folder's model: its embedding, and what makes logits of states.

    Returns:
        A decoder without layers between them, the facts with an empty fingerprint, and the model's number of layers.

    Raises:
        ModelRefused: as for `load_decoder`.
    """
    if dtype not in DTYPES:
        raise ModelRefused(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
    open_folder(path, allow_pickle=allow_pickle)
    found = find_device(device)
    whole = _try(path, "configuration", lambda: AutoConfig.from_pretrained(path, local_files_only=True))
    config = whole.get_text_config(decoder=True)
    layers, config.num_hidden_layers = int(config.num_hidden_layers), 0
    told = logging.get_verbosity()
    logging.set_verbosity_error()  # transformers would warn of each weight that is left out
    try:
        model = _load_model(path, DTYPES[dtype], allow_pickle, config=whole).to(found).eval()
    finally:
        logging.set_verbosity(told)
    tokenizer = _try(path, "tokenizer", lambda: AutoTokenizer.from_pretrained(path, local_files_only=True))
    facts = read_facts(path, model, tokenizer, "")
    return Decoder(model, facts.vocab_size, found), facts, layers


def load_plain_model(
    path: Path, dtype: str, device: str, *, allow_pickle: bool = False
) -> tuple[Any, ModelFacts, torch.device]:
    """Load the folder's transformers model, a decoder or an encoder-decoder, with its facts and its device.

    Raises:
        ModelRefused: the folder, the dtype or the device cannot be used; the message says which and why.
    """
    if dtype not in DTYPES:
        raise ModelRefused(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
    folder = open_folder(path, allow_pickle=allow_pickle, encoder_decoder=True)
    found = find_device(device)
    kind = AutoModelForSeq2SeqLM if folder.config.get("is_encoder_decoder") else AutoModelForCausalLM
    model = _load_model(path, DTYPES[dtype], allow_pickle, kind).to(found).eval()
    tokenizer = _try(path, "tokenizer", lambda: AutoTokenizer.from_pretrained(path, local_files_only=True))
    return model, read_facts(path, model, tokenizer, folder.fingerprint(dtype)), found


def load_vocabulary(path: Path) -> dict[str, int]:
    """The id of each token, from the folder's tokenizer alone.

    Raises:
        ModelRefused: no tokenizer can be read.
    """
    tokenizer = _try(path, "tokenizer", lambda: AutoTokenizer.from_pretrained(path, local_files_only=True))
    ids: dict[str, int] = tokenizer.get_vocab()
    return ids


def load_tokenizer_json(path: Path) -> str | None:
    """The folder's tokenizer as the content of a tokenizer.json; None if it is not a fast tokenizer.

    Raises:
        ModelRefused: no tokenizer can be read.
    """
    tokenizer = _try(path, "tokenizer", lambda: AutoTokenizer.from_pretrained(path, local_files_only=True))
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    backend.no_padding()
    backend.no_truncation()
    return str(backend.to_str())


def read_facts(path: Path, model: Any, tokenizer: Any, fingerprint: str) -> ModelFacts:
    """Read the facts from a loaded transformers model and tokenizer.

    Raises:
        ModelRefused: the tokenizer does not fit the model, or the context length is unknown.
    """
    config = model.config.get_text_config(decoder=True)
    return _facts(path, config, model.get_input_embeddings().weight.shape[0], tokenizer, fingerprint)


def read_folder_facts(path: Path, dtype: str, *, allow_pickle: bool = False) -> ModelFacts:
    """Read the facts from a folder whose model another engine loads in `dtype`.

    Raises:
        ModelRefused: the folder cannot be served; the message says why.
    """
    folder = open_folder(path, allow_pickle=allow_pickle)
    whole = _try(path, "configuration", lambda: AutoConfig.from_pretrained(path, local_files_only=True))
    config = whole.get_text_config(decoder=True)
    tokenizer = _try(path, "tokenizer", lambda: AutoTokenizer.from_pretrained(path, local_files_only=True))
    return _facts(path, config, config.vocab_size, tokenizer, folder.fingerprint(dtype))


def _facts(path: Path, config: Any, rows: int, tokenizer: Any, fingerprint: str) -> ModelFacts:
    ids: dict[str, int] = tokenizer.get_vocab()
    size = _vocab_size(path, ids, rows)
    ends, named = end_token_ids(path, config.eos_token_id, tokenizer, size), named_end_ids(path, tokenizer)
    return ModelFacts(
        name=path.resolve().name,
        vocab_size=size,
        context_length=_context_length(path, config),
        end_token_ids=ends,
        turn_end_ids=ends - named if named else frozenset(),
        tokenizer_hash=vocabulary.fingerprint(ids),
        fingerprint=fingerprint,
    )


def find_device(device: str) -> torch.device:
    """The device of the given name; "auto" is the accelerator if there is one, else the host.

    Raises:
        ModelRefused: the device does not exist or cannot be used.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        raise ModelRefused(f"device {device!r} cannot be used: {error}") from error


def _vocab_size(path: Path, ids: dict[str, int], rows: int) -> int:
    size = max(ids.values(), default=-1) + 1
    if not 0 < size <= rows:
        raise ModelRefused(f"{path}: the tokenizer has ids up to {size - 1}, the model has {rows} rows for them")
    return size


def _context_length(path: Path, config: Any) -> int:
    length = getattr(config, "max_position_embeddings", None)
    if length is None and hasattr(config, "relative_attention_num_buckets"):
        return RELATIVE_CONTEXT
    if not isinstance(length, int) or length < 1:
        raise ModelRefused(f"{path}: config.json gives no max_position_embeddings, so the context length is unknown")
    return length


def _load_model(
    path: Path, dtype: torch.dtype, allow_pickle: bool, kind: Any = AutoModelForCausalLM, config: Any = None
) -> Any:
    logging.disable_progress_bar()
    model, report = _try(
        path,
        "model",
        lambda: kind.from_pretrained(
            path,
            config=config,
            dtype=dtype,
            attn_implementation="eager",
            local_files_only=True,
            use_safetensors=None if allow_pickle else True,
            output_loading_info=True,
        ),
    )
    # transformers would fill missing tensors with random numbers.
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
    """Refuse rotary frequencies that depend on the longest sequence of a pass: sessions would affect each other."""
    for scaling in _rope_settings(config):
        kind = scaling.get("rope_type", scaling.get("type"))
        if kind in {"dynamic", "longrope"}:
            raise ModelRefused(f"{path}: {kind} rotary embeddings change with the other sessions of a pass; not served")


def _rope_settings(config: dict[str, Any]) -> list[dict[str, Any]]:
    """The rotary settings: one object, or one object for each kind of layer."""
    found = [config.get(name) for name in ("rope_parameters", "rope_scaling")]
    objects = [entry for entry in found if isinstance(entry, dict)]
    return objects + [inner for entry in objects for inner in entry.values() if isinstance(inner, dict)]
