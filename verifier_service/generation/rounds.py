"""What a session yields: one frozen Round per verdict, and the cut that ends a generation inside one."""

from collections.abc import Container
from dataclasses import dataclass
from enum import StrEnum

from specdec.rules.draft import Verdict
from specdec.rules.logprobs import TokenLogprobs
from specdec.rules.params import FinishReason, Origin


class Fallback(StrEnum):
    """Why a round that wanted a draft had none."""

    NONE = ""
    UNAVAILABLE = "drafter_unavailable"
    TIMEOUT = "draft_timeout"
    TOKENIZER = "tokenizer_mismatch"
    OVERLOADED = "overloaded"


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one round."""

    draft: float = 0.0
    """Waiting for the draft."""
    queue: float = 0.0
    """Waiting for a place in a batch."""
    verify: float = 0.0
    """Target pass and verdict of the whole batch."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What of a verdict is committed; every count is of what was kept."""

    tokens: tuple[int, ...]
    origins: tuple[Origin, ...]
    accepted: int
    finish: FinishReason | None
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Round:
    """One draft and its verdict, after the cut."""

    base_len: int
    """Committed length before this round."""
    tokens: tuple[int, ...]
    """At least one, except in the only round of a generation that had ended before."""
    origins: tuple[Origin, ...]
    draft: tuple[int, ...]
    accepted: int
    """Drafts among `tokens`."""
    finish: FinishReason | None
    fallback: Fallback
    timing: Timing
    logprobs: tuple[TokenLogprobs, ...] = ()
    """Of `tokens`; empty when nobody asked."""
    asked: int = 0
    """Drafts it waited for; 0 when it took what there was."""


def cut(verdict: Verdict, end_ids: Container[int], room: int) -> Cut:
    """Keep a verdict up to the earliest of an end id, which is kept itself, and `room` tokens (at least 1)."""
    tokens = verdict.tokens[:room]
    end = next((index for index, token in enumerate(tokens) if token in end_ids), None)
    finish = FinishReason.LENGTH if len(verdict.tokens) >= room else None
    if end is not None:
        tokens = tokens[: end + 1]
        finish = FinishReason.STOP
    count = len(tokens)
    return Cut(tokens, verdict.origins[:count], min(verdict.accepted, count), finish, verdict.logprobs[:count])
