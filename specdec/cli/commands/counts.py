"""`specdec counts`: count the tokens of a text, for a drafter of kind `counts`."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from specdec.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_PIECE = 1 << 20
"""Number of characters tokenized at once: a tokenizer takes many times the memory of its text."""


def write(corpus: Path, tokenizer: Path, out: Path, order: int) -> int:
    """Count the text of a file, or of all files of a folder, and write the counts.

    Returns:
        Number of tokens counted.

    Raises:
        ConfigError: the text is missing, not UTF-8 or too short; or the folder has no tokenizer.
    """
    texts = list(_texts(corpus))
    import torch
    from transformers import AutoTokenizer

    from specdec.sampling import vocabulary
    from specdec.sources.counts import COUNTS_FILE, count, save_counts

    try:
        loaded: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(tokenizer, local_files_only=True)
    except Exception as error:  # a broken folder can fail in any way
        raise ConfigError(f"--tokenizer {tokenizer}: no tokenizer that loads") from error
    tokens: list[int] = []
    for text in texts:
        for start in range(0, len(text), _PIECE):
            tokens += loaded.encode(text[start : start + _PIECE], add_special_tokens=False, verbose=False)
    if len(tokens) < 2:
        raise ConfigError(f"{corpus} has too little text to count")
    ids = loaded.get_vocab()
    counts = count(torch.tensor(tokens), max(ids.values()) + 1, vocabulary.fingerprint(ids), order)
    save_counts(counts, out / COUNTS_FILE)
    return len(tokens)


def _texts(corpus: Path) -> Iterator[str]:
    """The text of each file, in the order of their paths."""
    files = sorted(path for path in corpus.rglob("*") if path.is_file()) if corpus.is_dir() else [corpus]
    for file in files:
        try:
            yield file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file}: no text that can be read: {error}") from error
