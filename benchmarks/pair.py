"""The pair of models, and prompts of held-out text."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from transformers import AutoTokenizer

from benchmarks.run import Ask
from models.train.corpus import read_corpus, stdlib_root


@dataclass(frozen=True, slots=True)
class Pair:
    """Model folders with one tokenizer."""

    target: Path
    drafter: Path

    def asks(self, count: int, prompt: int, tokens: int, temperature: float = 0.0, first: int = 0) -> list[Ask]:
        """Return `count` generations of `tokens` tokens, each with its own `prompt` tokens of held-out text.

        They begin at number `first`. The order is the beginnings of all documents, then their second pieces, and so on.
        """
        prompts = _pieces(self.target, prompt)
        numbers = range(first, first + count)
        return [Ask(prompts[number % len(prompts)], tokens, temperature, seed=number) for number in numbers]


@cache
def _pieces(tokenizer: Path, length: int) -> list[tuple[int, ...]]:
    """Return pieces of `length` ids, the first of every document before the second of any."""
    documents = _held_out(tokenizer)
    starts = range(0, max(map(len, documents)), length)
    return [ids[at : at + length] for at in starts for ids in documents if len(ids) >= at + length]


@cache
def _held_out(tokenizer: Path) -> list[tuple[int, ...]]:
    """Return each document's ids."""
    loaded = AutoTokenizer.from_pretrained(tokenizer, local_files_only=True)
    texts = (document.text for document in read_corpus(stdlib_root(), seed=0).held_out)
    return [tuple(loaded(text, add_special_tokens=False, verbose=False)["input_ids"]) for text in texts]
