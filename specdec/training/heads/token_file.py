"""A compressed file of texts as token ids: about two bytes for each token, without states and distributions."""

import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from specdec.errors import ConfigError
from specdec.training.heads.texts import TargetText, TextStart


@dataclass(frozen=True)
class StoredTokens:
    """Texts of a file."""

    texts: Sequence[TextStart] = ()
    """Tokens of whole texts, each with the position of the first that the target wrote."""
    batches: int = 0
    """Number of batches that they were written in."""
    tokenizer: str = ""
    """Fingerprint of the tokenizer; empty if there are no texts."""
    digest: str = ""
    """Identifies the file."""


def save_tokens(path: Path, texts: Sequence[TargetText], batches: int, tokenizer: str) -> None:
    """Write the tokens of texts; `batches` and `tokenizer` as in `StoredTokens`."""
    tokens = [np.asarray(text.tokens.tolist(), np.uint32) for text in texts]
    joined = np.concatenate([np.empty(0, np.uint32), *tokens])
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        path,
        tokens=joined.astype(np.uint16 if joined.max(initial=0) < 2**16 else np.uint32),
        lengths=np.array([len(each) for each in tokens], np.uint32),
        begins=np.array([text.begin for text in texts], np.uint32),
        batches=np.array(batches),
        tokenizer=np.array(tokenizer),
    )


def load_tokens(path: Path | None) -> StoredTokens:
    """Return the texts of a file; none without a file.

    Raises:
        ConfigError: the file cannot be read, or is no file of `save_tokens`.
    """
    if path is None:
        return StoredTokens()
    try:
        with np.load(path, allow_pickle=False) as found:
            tokens, lengths, begins = (found[name].tolist() for name in ("tokens", "lengths", "begins"))
            batches, tokenizer = int(found["batches"]), str(found["tokenizer"])
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        ends = np.cumsum([0, *lengths]).tolist()
        places = zip(pairwise(ends), begins, strict=True)
        texts = [TextStart(tokens[start:end], begin) for (start, end), begin in places]
    except (OSError, ValueError, TypeError, KeyError, EOFError, BadZipFile, zlib.error) as error:
        raise ConfigError(f"--data {path}: cannot be read: {error}") from error
    if ends[-1] != len(tokens) or not all(0 < text.begin < len(text.tokens) for text in texts):
        raise ConfigError(f"--data {path}: is no file of texts")
    return StoredTokens(texts, batches, tokenizer, digest)
