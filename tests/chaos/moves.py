"""Moves of generations between verifiers, and whether their prompts came from the store of KV blocks.

An attempt is a call of one generation at one verifier. Gateways log each with its epoch, which rises with every attempt
at all gateways together. A move is an attempt at another verifier than the attempt before it. Its prompt was restored
if the verifier took tokens from the store for this attempt, and its first round found more of the prompt than the
verifier's own prefix cache had before.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any

FirstRounds = Mapping[tuple[str, int], int]
"""Prompt tokens that a stored round found cached, by generation and number of tokens before the round."""
HELD = "held"
"""Reason that a prompt was not restored: the verifier's own prefix cache had it."""
NOT_BEGUN = "not_begun"
"""Reason that a prompt was not restored: no round was committed, so no verifier had offered its blocks."""
NO_LOOKUP = "no_lookup"
"""Reason that a prompt was not restored: the gateway looked for no blocks, after a late lookup or without a store."""
UNUSED = "unused"
"""Reason that a prompt was not restored: the verifier took blocks, and its first round did not find them."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """Result of the lookup of an attempt."""

    miss: str
    """Reason that it ended before the last block, or ""."""
    held: int
    """Tokens in the verifier's own prefix cache before."""
    restored: int
    """Tokens that the verifier took from the store."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A call of a generation at a verifier."""

    generation: str
    epoch: int
    verifier: str
    committed: int
    """Tokens of the generation before the attempt, with its prompt."""
    lookup: Lookup | None
    """None if the gateway looked for no blocks."""


@dataclass(frozen=True, slots=True)
class Moves:
    """Numbers of moves that added a round; one that was lost before that is not counted."""

    moved: int = 0
    restored: int = 0
    """Moves whose prompt was restored."""
    not_restored: Mapping[str, int] = field(default_factory=dict)
    """The others by reason: a constant of this module, or the reason of the lookup."""


def read_attempts(logs: Iterable[str]) -> list[Attempt]:
    """Return the attempts in the logs of gateways, whose level is `debug`."""
    events = list(_events(logs))
    lookups = {
        (each["session"], each["epoch"]): Lookup(each["miss"], each["held"], each["restored"])
        for each in events
        if each["event"] == "kv_lookup"
    }
    return [
        Attempt(
            each["generation"],
            each["epoch"],
            each["verifier"],
            each["committed"],
            lookups.get((each["generation"].rpartition("-")[0], each["epoch"])),
        )
        for each in events
        if each["event"] == "attempt_began"
    ]


def count_moves(attempts: Iterable[Attempt], rounds: FirstRounds, prompt: int) -> Moves:
    """Count moves, each with the stored round that follows the tokens before it; prompts have `prompt` tokens."""
    reasons = Counter(_reason(move, rounds, prompt) for move in _moves(attempts, rounds))
    return Moves(reasons.total(), reasons.pop("", 0), dict(reasons))


def _moves(attempts: Iterable[Attempt], rounds: FirstRounds) -> Iterator[Attempt]:
    ordered = sorted(attempts, key=lambda each: (each.generation, each.epoch))
    for _, group in groupby(ordered, key=lambda each: each.generation):
        own = list(group)
        last = {each.committed: each for each in own}  # of attempts at one length, only the last one added a round
        for before, each in pairwise(own):
            added = last[each.committed] is each and (each.generation, each.committed) in rounds
            if added and each.verifier != before.verifier:
                yield each


def _reason(move: Attempt, rounds: FirstRounds, prompt: int) -> str:
    """Return the reason that the prompt of a move was not restored, or "" if it was."""
    lookup, cached = move.lookup or Lookup("", 0, 0), rounds[move.generation, move.committed]
    if lookup.restored and cached > lookup.held:
        return ""
    if lookup.miss in ("late", "failed"):
        return lookup.miss
    if cached:
        return HELD
    if move.committed <= prompt:
        return NOT_BEGUN
    if move.lookup is None:
        return NO_LOOKUP
    return lookup.miss or UNUSED


def _events(logs: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the entries of logs. Other lines, and the last one of a killed process, may be anything."""
    for line in logs:
        if '"attempt_began"' in line or '"kv_lookup"' in line:
            with suppress(ValueError):
                yield json.loads(line)
