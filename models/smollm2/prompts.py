"""Prompts that the target answers to train its drafter: tasks on topics and on prose of the standard library.

None of them is in benchmarks/spec_bench.jsonl, which measures the drafter.
"""

import random
import re
from pydoc_data.topics import topics

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
