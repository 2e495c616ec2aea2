"""What the rest of the system must know of a model: its name, its vocabulary, its context, its end."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec.errors import ModelRefused
from specdec.rules import vocabulary


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts of one model folder."""

    name: str
    """The folder's name."""
    vocab_size: int
    """Valid ids are 0..vocab_size-1, by the tokenizer."""
    context_length: int
    """Most positions a session can have."""
    end_token_ids: frozenset[int]
    """Ids that end a generation."""
    tokenizer_hash: str
    """See `specdec.rules.vocabulary`."""
    fingerprint: str
    """See `ModelFolder.fingerprint`."""


def read_facts(path: Path, model: Any, tokenizer: Any, fingerprint: str) -> Facts:
    """Read the facts off a loaded transformers model and tokenizer."""
    config = model.config.get_text_config(decoder=True)
    ids: dict[str, int] = tokenizer.get_vocab()
    return Facts(
        name=path.resolve().name,
        vocab_size=_vocab_size(path, ids, model.get_input_embeddings().weight.shape[0]),
        context_length=_context_length(path, config),
        end_token_ids=end_token_ids(model.generation_config.eos_token_id, config.eos_token_id, tokenizer.eos_token_id),
        tokenizer_hash=vocabulary.fingerprint(ids),
        fingerprint=fingerprint,
    )


def end_token_ids(*sources: int | list[int] | None) -> frozenset[int]:
    """The ids of the first source that names any: generation settings, then configuration, then tokenizer."""
    for source in sources:
        if source is not None:
            return frozenset([source] if isinstance(source, int) else source)
    return frozenset()


def _vocab_size(path: Path, ids: dict[str, int], rows: int) -> int:
    size = max(ids.values(), default=-1) + 1
    if not 0 < size <= rows:
        raise ModelRefused(f"{path}: the tokenizer has ids up to {size - 1}, the model has {rows} rows for them")
    return size


def _context_length(path: Path, config: Any) -> int:
    length = getattr(config, "max_position_embeddings", None)
    if not isinstance(length, int) or length < 1:
        raise ModelRefused(f"{path}: config.json gives no max_position_embeddings, so the context length is unknown")
    return length
