"""The events of a generation, in order: one Started, any number of OutputRounds, one Finished."""

from dataclasses import dataclass

from gateway.priority import PriorityClass
from gateway.text.output import OutputToken
from gateway.turns.statistics import Summary
from specdec.rules.params import FinishReason


@dataclass(frozen=True, slots=True)
class Started:
    """The generation is accepted, and its turn is stored."""

    id: str
    """Public id of the generation; of several choices, that of the first."""
    created: int
    """When the turn began, in Unix seconds."""
    model: str
    prompt_tokens: tuple[int, ...]
    seed: int
    system_fingerprint: str
    """Outputs of one seed are the same under one fingerprint."""
    session: str = ""
    """Id of the session that the caller named; empty when the caller named none."""
    turn: int = 1
    """Position of the turn in its session, from 1 on."""
    answer_format: str = ""
    """How the answer is written, as the API that took the request spells it."""
    priority: PriorityClass = PriorityClass.DEFAULT
    choices: int = 1
    """How many generations the request has; this is the first of them."""


@dataclass(frozen=True, slots=True)
class RejectedToken:
    """One drafted token that is not part of the output."""

    id: int
    text: str
    """The token's text, decoded on its own."""


@dataclass(frozen=True, slots=True)
class OutputRound:
    """What may be shown after a round was committed: the output tokens whose text is final now."""

    text: str
    """The joined text of `tokens`."""
    tokens: tuple[OutputToken, ...]
    rejected: tuple[RejectedToken, ...]
    drafted: int
    """Length of the round's draft."""
    accepted: int
    """Drafted tokens that are part of the output."""
    committed: int
    """Output tokens committed so far, shown or held back."""
    choice: int = 0
    """Index of the generation among the choices of its request."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The generation ended well; one that failed raises an error instead."""

    reason: FinishReason
    matched_stop: str
    """The stop string that ended the output; empty when none did."""
    prompt_tokens: int
    completion_tokens: int
    summary: Summary
    choice: int = 0
    """Index of the generation among the choices of its request."""


Event = Started | OutputRound | Finished
