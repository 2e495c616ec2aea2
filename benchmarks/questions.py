"""Spec-Bench's six categories, with this project's own questions, as conversations of a chat model.

`spec_bench.jsonl` has Spec-Bench's layout (`question_id`, `category`, `turns`), so it also works with `vllm bench serve
--dataset-name spec_bench --dataset-path benchmarks/spec_bench.jsonl`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import AutoTokenizer

FILE = Path(__file__).with_name("spec_bench.jsonl")
CATEGORIES = ("multi_turn", "translation", "summarization", "qa", "math_reasoning", "rag")


@dataclass(frozen=True, slots=True)
class Question:
    """Questions of a conversation, one per turn."""

    category: str
    turns: tuple[str, ...]


def questions(count: int, file: Path = FILE) -> Mapping[str, Sequence[Question]]:
    """Return the first `count` questions of each category."""
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    asked = [Question(row["category"], tuple(row["turns"])) for row in rows]
    return {name: [each for each in asked if each.category == name][:count] for name in CATEGORIES}


class Conversation:
    """The turns of one question, in the model's own template."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)

    def prompt(self, question: Question, answers: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """Return the ids before the next answer, given the `answers` to earlier turns."""
        messages = []
        for number, text in enumerate(question.turns[: len(answers) + 1]):
            messages.append({"role": "user", "content": text})
            if number < len(answers):
                said = self._tokenizer.decode(answers[number], skip_special_tokens=True)
                messages.append({"role": "assistant", "content": said})
        text = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return tuple(self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
