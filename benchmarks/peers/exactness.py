"""Tests whether each peer's drafts keep its distribution: the tests of `specdec prove`, on the peers' answers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from benchmarks.run import Ask
from specdec.cli.commands.prove import p_value

HEAD = ("peer", "compared with", "greedy answers identical", "sampled: p", "sequences a side", "verdict")
_GREEDY_TOKENS = 48
_SAMPLED_TOKENS = 5
"""Sampled tokens. The first comes from the prompt's pass; drafts could change the others."""
_AT_ONCE = 8
_ALPHA = 0.001
_PERMUTATIONS = 1999

Answers = Sequence[tuple[int, ...]]


def answers(ask: Callable[[Sequence[Ask]], Answers], prompts: Sequence[Ask], samples: int) -> tuple[Answers, Answers]:
    """Return greedy answers to each prompt, and sampled beginnings of the answer to the first, without seeds."""
    greedy = [replace(each, tokens=_GREEDY_TOKENS, temperature=0.0) for each in prompts]
    sampled = [replace(prompts[0], tokens=_SAMPLED_TOKENS, temperature=1.0)] * samples
    return _in_batches(ask, greedy), _in_batches(ask, sampled)


def _in_batches(ask: Callable[[Sequence[Ask]], Answers], asks: Sequence[Ask]) -> Answers:
    starts = range(0, len(asks), _AT_ONCE)
    return [tokens for start in starts for tokens in ask(asks[start : start + _AT_ONCE])]


def row(peer: str, other: str, found: Mapping[str, tuple[Answers, Answers] | str]) -> list[str]:
    """Return a table's row. A peer that failed has a reason instead of answers."""
    mine, theirs = found[peer], found[other]
    if isinstance(mine, str) or isinstance(theirs, str):
        return [peer, other, "–", "–", "–", mine if isinstance(mine, str) else str(theirs)]
    same = sum(one == two for one, two in zip(mine[0], theirs[0], strict=True))
    p = p_value(_texts(mine[1]), _texts(theirs[1]), _PERMUTATIONS)
    verdict = "exact" if same == len(mine[0]) and p > _ALPHA else "not exact"
    return [peer, other, f"{same} of {len(mine[0])}", f"{p:.4f}", str(len(mine[1])), verdict]


def _texts(sequences: Answers) -> list[tuple[str, ...]]:
    return [tuple(map(str, each)) for each in sequences]
