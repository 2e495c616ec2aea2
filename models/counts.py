"""`python -m models.counts OUT`: unigram or bigram counts of the training text, a drafter of `kind: counts`."""

from pathlib import Path
from typing import Annotated

import typer
from transformers import AutoTokenizer

from models.train.corpus import read_corpus, stdlib_root
from models.train.data import encode
from specdec.rules import vocabulary
from specdec.sources.counts import COUNTS_FILE, count, save_counts

_TARGET = Path(__file__).parent / "demo" / "target"


def main(
    out: Annotated[Path, typer.Argument(help="Folder to write.")],
    tokenizer: Annotated[Path, typer.Option(help="Folder with the target's tokenizer.")] = _TARGET,
    order: Annotated[int, typer.Option(min=1, max=2, help="1 for unigrams, 2 for bigrams.")] = 2,
) -> None:
    """Count the standard library's sources, without the held-out files."""
    loaded = AutoTokenizer.from_pretrained(tokenizer, local_files_only=True)
    ids = loaded.get_vocab()
    text = encode(read_corpus(stdlib_root(), seed=0).train, loaded)
    save_counts(count(text, max(ids.values()) + 1, vocabulary.fingerprint(ids), order), out / COUNTS_FILE)


if __name__ == "__main__":
    typer.run(main)
