"""Which of the waiting work goes into the next target pass; a pure policy."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from specdec.draft import NO_DRAFT, Draft
from specdec.params import Mode, SamplingParams
from specdec.sampling import History

NO_HISTORY = History()


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One session's round."""

    session: str
    """Names the session's KV."""
    pending: tuple[int, ...]
    """Committed tokens without KV: at least the last one."""
    base_len: int
    """Committed length, pending tokens included."""
    mode: Mode
    params: SamplingParams
    draft: Draft = NO_DRAFT
    history: History = NO_HISTORY
    """Prompt and output, for parameters that count them."""
    lenience: float = 1.0
    """ℓ; 1 is exact."""
    logprobs: int | None = None
    """How many likely tokens are reported beside each committed one; None is no logprobs."""

    @property
    def prompt_tokens(self) -> int:
        """Tokens that count against the prompt budget: a row of a session that decodes has none."""
        return len(self.pending) - 1


@dataclass(frozen=True, slots=True, eq=False)
class Prefill:
    """A piece of a prompt that needs KV and no verdict."""

    session: str
    tokens: tuple[int, ...]

    @property
    def prompt_tokens(self) -> int:
        """Tokens that count against the prompt budget."""
        return len(self.tokens)


Work = Row | Prefill


class HasWork(Protocol):
    """Whatever carries work through the queue."""

    @property
    def work(self) -> Work:
        """The work."""


T = TypeVar("T", bound="HasWork")


def plan(waiting: Sequence[T], chunk_tokens: int) -> tuple[list[T], list[T]]:
    """Split the queue into what runs now and what waits.

    Every session that decodes goes now. Prompts share `chunk_tokens`, first come first served; the first of them goes
    whatever its size, so that no prompt can wait forever.
    """
    now: list[T] = []
    later: list[T] = []
    used = 0
    for item in waiting:
        size = item.work.prompt_tokens
        if size == 0 or used == 0 or used + size <= chunk_tokens:
            now.append(item)
            used += size
        else:
            later.append(item)
    return now, later
