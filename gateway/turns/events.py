"""What a generation tells its caller: Started, then Rounds, then Finished."""

from dataclasses import dataclass

from gateway.priority import PriorityClass
from gateway.text.output import OutputToken
from gateway.turns.statistics import Summary
from specdec.rules.params import FinishReason


@dataclass(frozen=True, slots=True)
class Started:
    """The generation is accepted, owned and has a verifier."""

    id: str
    created: int
    """Unix seconds."""
    model: str
    prompt_tokens: tuple[int, ...]
    seed: int
    system_fingerprint: str
    """Outputs of one seed agree under one value."""
    session: str = ""
    """The session the caller named; empty when there is none."""
    turn: int = 1
    """Which turn of its session this is."""
    form: str = ""
    """As the request had it."""
    priority: PriorityClass = PriorityClass.DEFAULT
    choices: int = 1
    """Generations of the request, of which this is the first."""


@dataclass(frozen=True, slots=True)
class RejectedToken:
    """One draft that is not part of the output."""

    id: int
    text: str
    """On its own."""


@dataclass(frozen=True, slots=True)
class Round:
    """Tokens were committed; those whose text is final are shown."""

    text: str
    """The text of `tokens`, joined."""
    tokens: tuple[OutputToken, ...]
    rejected: tuple[RejectedToken, ...]
    drafted: int
    accepted: int
    committed: int
    """Output tokens committed so far, shown or not."""
    choice: int = 0
    """Which of several generations of one request."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The generation ended well; an error is raised instead."""

    reason: FinishReason
    matched_stop: str
    prompt_tokens: int
    completion_tokens: int
    summary: Summary
    choice: int = 0
    """Which of several generations of one request."""


Event = Started | Round | Finished
