"""Bugs in randomness: random numbers that are shared, advanced or drawn again."""

from collections.abc import Callable, Sequence
from itertools import count

import pytest
import torch
from torch import Tensor

from specdec.rules.coupling import choose, coupled_on_host, draw
from specdec.rules.rng import Lane, uniform
from specdec.sampling.distribution import sample
from tests.conformance.bugs.bug import Bug, Law, everywhere

Keys = Sequence[int]
Plant = Callable[[pytest.MonkeyPatch], None]


def sharing(one: Lane, other: Lane, back: int = 0) -> Plant:
    """Make lane `one` read lane `other`, `back` positions earlier."""

    def planted(seeds: Keys, positions: Keys, lane: Lane | Sequence[Lane], *rest: object, **named: object) -> Tensor:
        honest = uniform(seeds, positions, lane, *rest, **named)  # type: ignore[arg-type]
        others = uniform(seeds, [position - back for position in positions], other)
        lanes = [lane] * len(seeds) if isinstance(lane, Lane) else lane
        return torch.where(torch.tensor([each is one for each in lanes], dtype=torch.bool), others, honest)

    return lambda patch: everywhere(patch, uniform, planted)


def starts_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Block verdicts reuse the accept numbers of the previous round."""

    def planted(seeds: Keys, positions: Keys, lane: Lane, starts: object = None, indices: object = None) -> Tensor:
        kept = None if lane is Lane.ACCEPT else starts
        return uniform(seeds, positions, lane, kept, indices)  # type: ignore[arg-type]

    everywhere(patch, uniform, planted)


def one_stream(patch: pytest.MonkeyPatch) -> None:
    """One generator serves all sessions and advances with every draw."""
    calls = count()

    def planted(seeds: Keys, positions: Keys, lane: Lane, *rest: object, **named: object) -> Tensor:
        return uniform([next(calls) for _ in seeds], [0] * len(seeds), lane)

    everywhere(patch, uniform, planted)


def siblings_share_a_number(patch: pytest.MonkeyPatch) -> None:
    """All siblings of a position are judged by one number."""

    def planted(seeds: Keys, positions: Keys, lane: Lane, *rest: object, **named: object) -> Tensor:
        shared = named | {"indices": None} if lane is Lane.ACCEPT else named
        return uniform(seeds, positions, lane, *rest, **shared)  # type: ignore[arg-type]

    everywhere(patch, uniform, planted)


def redrawn_after_a_mismatch(patch: pytest.MonkeyPatch) -> None:
    """Coupled mode compares the draft with one draw of the target and emits another draw."""

    def planted(p: Tensor, drafts: Sequence[Keys], seeds: Keys, positions: Keys) -> list[tuple[int, ...]]:
        emitted = coupled_on_host(p, drafts, seeds, positions)
        at = [position + len(tokens) for position, tokens in zip(positions, emitted, strict=True)]
        last = torch.tensor([len(draft) + 1 for draft in drafts]).cumsum(0) - 1
        rows = last - torch.tensor([len(d) + 1 - len(tokens) for d, tokens in zip(drafts, emitted, strict=True)])
        again = sample(p[rows], uniform(seeds, at, Lane.BONUS)).tolist()
        return [
            tokens if len(tokens) > len(draft) else (*tokens[:-1], token)
            for tokens, draft, token in zip(emitted, drafts, again, strict=True)
        ]

    everywhere(patch, coupled_on_host, planted)


def draft_emitted(patch: pytest.MonkeyPatch) -> None:
    """Coupled mode keeps a draft that differs from the target's own draw."""

    def planted(p: Tensor, drafts: Sequence[Keys], seeds: Keys, positions: Keys) -> list[tuple[int, ...]]:
        return [
            tokens if len(tokens) > len(draft) else tuple(draft[: len(tokens)])
            for tokens, draft in zip(coupled_on_host(p, drafts, seeds, positions), drafts, strict=True)
        ]

    everywhere(patch, coupled_on_host, planted)


def noise_of_the_round(patch: pytest.MonkeyPatch) -> None:
    """Coupling noise is keyed by the round's parity instead of the position."""
    everywhere(patch, choose, lambda p, ids, seeds, at: choose(p, ids, seeds, [position // 2 for position in at]))
    everywhere(patch, draw, lambda p, seeds, at, *rows: draw(p, seeds, [position // 2 for position in at], *rows))


BUGS = (
    Bug(
        "accept reads the draft's number",
        Law.RANDOMNESS,
        sharing(Lane.ACCEPT, Lane.DRAFT),
        ("sampled rejection", "served rejection"),
    ),
    Bug("residual reads the draft's", Law.RANDOMNESS, sharing(Lane.RESIDUAL, Lane.DRAFT), ("sampled rejection",)),
    Bug("residual reads the accept", Law.RANDOMNESS, sharing(Lane.RESIDUAL, Lane.ACCEPT), ("sampled rejection",)),
    Bug("bonus reads the last accept", Law.RANDOMNESS, sharing(Lane.BONUS, Lane.ACCEPT, 1), ("sampled rejection",)),
    Bug("block numbers of the round before", Law.BLOCK, starts_forgotten, ("sampled block, rejecting",)),
    Bug("one stream for all sessions", Law.RANDOMNESS, one_stream, ("same tokens in any company",)),
    Bug("siblings share a number", Law.SIBLINGS, siblings_share_a_number, ("sampled siblings",)),
    Bug("redrawn after a mismatch", Law.COUPLING, redrawn_after_a_mismatch, ("sampled coupling",)),
    Bug(
        "mismatched draft emitted",
        Law.COUPLING,
        draft_emitted,
        ("same tokens for any drafter", "served coupling"),
    ),
    Bug("coupling noise used twice", Law.COUPLING, noise_of_the_round, ("sampled coupling",)),
)
