"""Texts for draft sources: prompts, each with its replayed output, in the order of the requests."""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from transformers import AutoTokenizer

from benchmarks.machine import ROOT
from benchmarks.pair import Pair
from models.train.corpus import read_corpus, stdlib_root

_PAGES = ("architecture", "sessions", "failure", "exactness", "scaling")
_TOOLS = ("read_file", "search", "run_tests", "list_folder")


@dataclass(frozen=True, slots=True)
class Replayed:
    """One turn: a prompt, and the output that the target must produce."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]


def workloads(pair: Pair, turns: int, tokens: int) -> Mapping[str, Sequence[Replayed]]:
    """Return turns of each kind of work, with at most `tokens` tokens of output."""
    loaded = AutoTokenizer.from_pretrained(pair.target, local_files_only=True)

    def ids(text: str) -> tuple[int, ...]:
        return tuple(loaded(text, add_special_tokens=False, verbose=False)["input_ids"])

    made: dict[str, Iterator[tuple[str, str]]] = {
        "code": _halves(_code(turns)),
        "chat": _halves(_prose(turns)),
        "edit loop": _edits(turns, 3 * tokens),
        "agent loop": _calls(turns),
    }
    return {
        name: [Replayed(ids(prompt)[-3 * tokens :], ids(output)[:tokens]) for prompt, output in texts]
        for name, texts in made.items()
    }


def _halves(texts: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the beginning of a text as a prompt and its rest as the output. No source has seen the text."""
    return ((text[:600], text[600:4000]) for text in texts)


def _code(count: int) -> list[str]:
    """Return held-out files of the standard library."""
    long = [document.text for document in read_corpus(stdlib_root(), seed=0).held_out if len(document.text) > 3000]
    return long[:count]


def _prose(count: int) -> list[str]:
    """Return pages of the documentation, as answers of an assistant."""
    pages = [(ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in _PAGES]
    return [f"User: explain this system, part {number}\nAssistant: {page}" for number, page in enumerate(pages)][:count]


def _edits(count: int, length: int) -> Iterator[tuple[str, str]]:
    """Yield a file of `length` characters, rewritten in every turn with a name changed and a line added."""
    text, rng = _code(1)[0][:length], random.Random(0)
    for turn in range(count):
        words = sorted({word for word in text.replace("(", " ").replace(".", " ").split() if word.isidentifier()})
        word = rng.choice([each for each in words if len(each) > 3])
        lines = text.replace(word, f"{word}_{turn}", 2).splitlines()
        lines.insert(rng.randrange(len(lines)), f"# Changed in turn {turn}: {word} has another name.")
        edited = "\n".join(lines)
        yield f"{text}\n\n# Rename {word}, and write the whole file again.\n", edited
        text = edited


def _calls(count: int) -> Iterator[tuple[str, str]]:
    """Yield an agent's tool calls in JSON with different arguments, and summaries of the results."""
    rng = random.Random(0)
    for turn in range(count):
        calls = []
        for step in range(4):
            path = f"src/module_{rng.randrange(9)}/file_{rng.randrange(9)}.py"
            arguments = {"path": path, "start_line": rng.randrange(200), "recursive": rng.random() < 0.5}
            thought = f"I need to look at {path} before I change anything."
            calls.append({"step": step, "thought": thought, "tool": rng.choice(_TOOLS), "arguments": arguments})
        yield (
            f"Task {turn}: mend test {rng.randrange(999)}. Answer with tool calls in JSON.\n",
            json.dumps(calls, indent=2),
        )
