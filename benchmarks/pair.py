"""The pair of models, and prompts of text that neither was trained on."""

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

    def asks(self, count: int, prompt: int, tokens: int, temperature: float = 0.0) -> list[Ask]:
        """`count` generations of `tokens` tokens, each from its own `prompt` tokens of held-out text."""
        long = [row[:prompt] for row in _held_out(self.target) if len(row) >= prompt]
        return [Ask(long[number % len(long)], tokens, temperature, seed=number) for number in range(count)]


@cache
def _held_out(tokenizer: Path) -> list[tuple[int, ...]]:
    """Each document's ids."""
    loaded = AutoTokenizer.from_pretrained(tokenizer, local_files_only=True)
    texts = (document.text for document in read_corpus(stdlib_root(), seed=0).held_out)
    return [tuple(loaded(text, add_special_tokens=False, verbose=False)["input_ids"]) for text in texts]
