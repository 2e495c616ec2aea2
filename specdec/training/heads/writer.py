"""The target as the writer of texts: those that a head learns from, and those that measure it."""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

from pydantic import ByteSize
from rich.console import Console

from specdec.engine.native import NativeEngine
from specdec.errors import ConfigError
from specdec.training import answers
from specdec.training.answers import TEMPERATURES, Teacher
from specdec.training.heads.rollout import STEPS
from specdec.training.heads.texts import TargetText, TextStart, load_texts, read_texts, save_texts, write_texts
from specdec.training.heads.token_file import StoredTokens

_ASKED_TOKENS = 96
_MESSAGE = range(6, 49)
"""Number of tokens of a user's message that the target itself writes."""
_MARK = "\x01"


@dataclass(frozen=True)
class HeadPlan:
    """Options of a training run: target, data and output folder."""

    target: Path
    """Folder of the target."""
    out: Path
    """Folder of the head."""
    state: Path
    """Folder of texts and checkpoints, which a killed run resumes from, and a run with more tokens continues."""
    prompts: tuple[Path, ...] = ()
    """Files of prompts; empty takes the built-in ones, and messages that the target writes."""
    data: Path | None = None
    """File of texts that the target has written, as `token_file.save_tokens` writes it. They are learned first."""
    questions: Path | None = None
    """File in the format of Spec-Bench that measures the head; None takes held-out prompts."""
    tokens: int = 1_000_000
    """Number of tokens that the target writes."""
    draft_ids: int = 8192
    epochs: float = 4.0
    """Number of times that each text is used."""
    disk: int = 16 * 2**30
    """Most bytes of the texts with their states."""
    seed: int = 0
    threads: int | None = None
    """Number of CPU threads; None takes PyTorch's choice."""
    start: Path | None = None
    """Folder of a head of the target to continue from, with its draft ids; None is a new one."""


@dataclass(frozen=True)
class HeadData:
    """Prompts of a plan."""

    draw: answers.Prompts
    asked: Mapping[str, Sequence[str]]
    """Messages that measure the head, by domain."""
    about: str
    own: bool
    """Whether the target also writes messages itself."""
    stored: StoredTokens


class TextWriter:
    """Has the target write texts, unless they are stored."""

    def __init__(self, plan: HeadPlan, data: HeadData, teacher: Teacher, engine: NativeEngine) -> None:
        self._plan, self._data, self._teacher, self._engine = plan, data, teacher, engine
        self.batches = data.stored.batches
        """Number of batches that the texts of `taught` were written in."""

    def taught(self) -> list[TargetText]:
        """Return the texts to learn from: as many tokens as planned, or as fit the disk."""
        plan, console = self._plan, Console(stderr=True)
        texts, done, used, largest, made, spent = list[TargetText](), 0, 0, 0, 0, 0.0
        batches = self._batches()
        while done < plan.tokens:
            if used + 2 * largest > plan.disk:
                console.log(f"--disk {ByteSize(plan.disk).human_readable()} is full after {done:,} tokens")
                break
            path, make = next(batches)
            known, began = path.exists(), time.monotonic()
            fresh = self._stored(path, make)
            size = path.stat().st_size
            used, largest = used + size, max(largest, size)
            tokens = sum(text.written for text in fresh)
            if not tokens:
                raise ConfigError(f"--target: it ends its texts within {STEPS} tokens")
            texts, done = texts + fresh, done + tokens
            if not known:
                made, spent = made + tokens, spent + time.monotonic() - began
                left = spent / made * max(0, plan.tokens - done)
                console.log(f"{done:,} of {plan.tokens:,} tokens, about {left / 60:.0f} minutes left")
        return texts

    def _batches(self) -> Iterator[tuple[Path, Callable[[], list[TargetText]]]]:
        """Yield the file of each batch, and the function that makes its texts: stored ones, then ever more new ones."""
        state, stored, rows = self._plan.state, self._data.stored, answers.ROWS
        for start in range(0, len(stored.texts), rows):
            part = stored.texts[start : start + rows]
            yield state / f"stored-{stored.digest}-{start:07}.pt", partial(read_texts, self._engine, part)
        for number in count(self.batches):
            self.batches = number + 1
            yield state / f"texts-{number:05}.pt", partial(self._written, number)

    def asked(self) -> dict[str, tuple[list[TargetText], list[TargetText]]]:
        """Return the answers at temperatures 1 and 0 to the messages that measure the head, by domain."""
        found = {}
        for name, messages in self._data.asked.items():
            known = hashlib.sha256("\0".join(messages).encode()).hexdigest()[:16]
            starts = [self._start(text) for text in messages]
            sampled, greedy = (
                self._stored(
                    self._plan.state / f"asked-{known}-{at:.0f}.pt",
                    partial(write_texts, self._engine, starts, (at,), _ASKED_TOKENS, self._plan.seed),
                )
                for at in (1.0, 0.0)
            )
            if sampled and greedy:
                found[name] = sampled, greedy
        if not found:
            raise ConfigError(f"--questions: the target ends every answer within {STEPS} tokens")
        return found

    def _stored(self, path: Path, make: Callable[[], list[TargetText]]) -> list[TargetText]:
        """Return the texts of a file, which is made unless it is there, without those that are too short for drafts."""
        if not path.exists():
            save_texts(path, make())
        return [text for text in load_texts(path) if text.written > STEPS]

    def _written(self, number: int) -> list[TargetText]:
        seed, rows = self._plan.seed * 1_000_003 + number, answers.ROWS
        own = self._messages(rows, seed)[: rows // 2] if self._data.own else []
        starts = [*own, *(self._start(text) for text in self._data.draw(rows - len(own), seed))]
        return write_texts(self._engine, starts, TEMPERATURES, answers.NEW_TOKENS, seed)

    def _start(self, text: str) -> TextStart:
        tokens = self._teacher.tokens([("user", text)])
        return TextStart(tokens, len(tokens))

    def _messages(self, count: int, seed: int) -> list[TextStart]:
        """Have the target write where a user's message is due. Return the messages that it ended, which are taught."""
        tokenizer = self._teacher.tokenizer
        if not tokenizer.chat_template:
            return []
        marked = tokenizer.apply_chat_template(
            [{"role": "user", "content": _MARK}], add_generation_prompt=True, tokenize=False
        )
        first, last = (tokenizer(part, add_special_tokens=False)["input_ids"] for part in marked.split(_MARK))
        if not first:
            return []
        written = write_texts(self._engine, [TextStart(first, len(first))] * count, (1.0,), _MESSAGE.stop, seed)
        ends = self._engine.facts.end_token_ids
        messages = [text.tokens.tolist() for text in written if text.written - 1 in _MESSAGE]
        return [TextStart([*each[:-1], *last], len(first)) for each in messages if each[-1] in ends]
