"""The pair of models, and prompts of text that neither was trained on."""

from dataclasses import dataclass
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
        tokenizer = AutoTokenizer.from_pretrained(self.target, local_files_only=True)
        texts = (document.text for document in read_corpus(stdlib_root(), seed=0).held_out)
        rows = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts)
        long = [tuple(row[:prompt]) for row in rows if len(row) >= prompt]
        return [Ask(long[number % len(long)], tokens, temperature, seed=number) for number in range(count)]
