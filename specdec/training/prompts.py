"""Prompts that the target answers to train its drafter: tasks on topics and on prose of the standard library.

None of them is in benchmarks/spec_bench.jsonl, which measures the drafter. A file of the caller's own prompts replaces
them.
"""

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from specdec.errors import ConfigError

_WORDS = range(40, 111)
"""Range of passage lengths, in words."""

_ON_PASSAGES = (
    "Summarise this passage in two sentences:\n\n{}",
    "Translate this passage to French:\n\n{}",
    "Translate this passage to German:\n\n{}",
    "Translate this passage to Spanish:\n\n{}",
    "Rewrite this passage in plain words for a beginner:\n\n{}",
    "Use the text below to answer: what is its main point, and which details support it?\n\n{}",
    "Read the document and list the facts that it states.\n\nDocument: {}\n\nFacts:",
    "Write three questions about this text, each with its answer:\n\n{}",
)

_ON_TOPICS = (
    "What is {}?",
    "Explain {} to a child of ten.",
    "Give me five tips about {}.",
    "Write a short story in which {} matters.",
    "Why do people care about {}?",
    "Write an email to a friend about {}.",
    "What are the advantages and the disadvantages of {}?",
    "How did {} change over the last hundred years?",
    "Write a short poem about {}.",
    "Describe the three most common mistakes with {}.",
    "Compare {} with something similar.",
    "Write a lesson plan on {} for one hour.",
    "Who should I ask about {}, and which questions?",
    "Make up a dialogue between two people who disagree about {}.",
    "Write the opening paragraph of an essay about {}.",
    "List the steps to get started with {}.",
)

_TOPICS = tuple(
    """growing tomatoes; the water cycle; bicycle repair; the printing press; black holes; learning the piano; sleep;
    the French Revolution; baking bread; electric cars; vaccines; chess openings; the stock market; photosynthesis;
    public libraries; writing a résumé; volcanoes; meditation; the Roman Empire; recycling; databases; honey bees;
    long-distance running; coffee; the human heart; earthquakes; learning a language; the moon landing; budgeting;
    coral reefs; solar panels; job interviews; the immune system; the Silk Road; first aid; dinosaurs; city planning;
    cheese making; the theory of evolution; remote work; jazz; recursion in programming; glaciers; friendship;
    the Olympic Games; house plants; gravity; small businesses; fractions; train travel; the Great Wall of China;
    healthy breakfasts; penguins; machine learning; weather forecasts; photography; swimming; email etiquette;
    the Industrial Revolution; camping; the periodic table; wolves; public speaking; rice; bridges; stress""".replace(
        "\n    ", " "
    ).split("; ")
)

_SUMS = (
    "{name} has {a} apples and buys {b} bags with {c} apples each. How many apples does {name} have now?",
    "A train goes {a} kilometres an hour for {b} hours, then {c} kilometres more. How far does it go in all?",
    "{name} saves {a} dollars a week. After {b} weeks {name} spends {c} dollars. How much is left?",
    "A class of {a} pupils is joined by {b} others, and {c} leave. How many are there? Think step by step.",
    "{name} reads {a} pages a day for {b} days, and {c} pages on the last day. How many pages is that?",
    "What is {a} times {b}, plus {c}? Show each step.",
)
_NAMES = ("Anna", "Ben", "Carla", "David", "Ella", "Farid", "Grace", "Hugo")


def prompts(count: int, seed: int) -> list[str]:
    """Return `count` user messages in a seeded order: one third each on passages, on topics and with sums."""
    chosen = random.Random(seed)
    passages, makers = _passages(), (_on_passage, _on_topic, _sum)
    return [makers[number % len(makers)](chosen, passages) for number in range(count)]


HELD_OUT = 8
"""One prompt in this many of a file measures the drafter, and is not trained on."""
_LEAST = 2 * HELD_OUT


@dataclass(frozen=True, slots=True)
class OwnPrompts:
    """Prompts of a file."""

    taught: tuple[str, ...]
    """Prompts that the drafter is trained on."""
    held_out: tuple[str, ...]

    def draw(self, count: int, seed: int) -> list[str]:
        """Return `count` of the taught prompts in a seeded order. Each is used once before any is used again."""
        rounds = -(-count // len(self.taught))
        order = random.Random(seed)
        return [text for _ in range(rounds) for text in order.sample(self.taught, len(self.taught))][:count]


def read_prompts(file: Path, option: str = "--data") -> OwnPrompts:
    """Return the prompts of a file: one a line, or in a .jsonl file `prompt`, `turns` or `messages` of each row.

    Raises:
        ConfigError: the file cannot be read, a row has no prompt, or there are too few.
    """
    try:
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise ConfigError(f"{option} {file}: cannot be read: {error}") from error
    texts = [_prompt(f"{option} {file}", *each) for each in enumerate(lines, 1)] if file.suffix == ".jsonl" else lines
    texts = list(dict.fromkeys(texts))
    if len(texts) < _LEAST:
        raise ConfigError(f"{option} {file}: needs at least {_LEAST} different prompts, has {len(texts)}")
    taught = tuple(text for place, text in enumerate(texts) if place % HELD_OUT)
    return OwnPrompts(taught, tuple(texts[::HELD_OUT]))


def _prompt(named: str, number: int, line: str) -> str:
    try:
        text = _first_user_text(json.loads(line))
    except (ValueError, KeyError, IndexError, TypeError, StopIteration):
        text = None
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"{named}: line {number} has no text in prompt, turns or messages")
    return text


def _first_user_text(row: Mapping[str, Any]) -> Any:
    if "messages" in row:
        messages: Sequence[Mapping[str, Any]] = row["messages"]
        return next(each["content"] for each in messages if each["role"] == "user")
    return row["turns"][0] if "turns" in row else row["prompt"]


def _passages() -> list[str]:
    """Return prose paragraphs of the Python language reference, which ships with the interpreter."""
    paragraphs = (part for text in topics.values() for part in re.split(r"\n\s*\n", text))
    prose = (" ".join(part.split()) for part in paragraphs if not part.startswith("   "))
    return [part for part in prose if len(part.split()) in _WORDS]


def _on_passage(chosen: random.Random, passages: list[str]) -> str:
    return chosen.choice(_ON_PASSAGES).format(chosen.choice(passages))


def _on_topic(chosen: random.Random, _: list[str]) -> str:
    return chosen.choice(_ON_TOPICS).format(chosen.choice(_TOPICS))


def _sum(chosen: random.Random, _: list[str]) -> str:
    a, b, c = chosen.randint(3, 90), chosen.randint(2, 12), chosen.randint(2, 40)
    return chosen.choice(_SUMS).format(name=chosen.choice(_NAMES), a=a, b=b, c=c)
