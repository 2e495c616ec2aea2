"""Beam search, and its speculative form (Leviathan et al., Appendix A.4).

A step extends every running beam by one token and keeps the candidates with the highest log probabilities, by the rules
of `generate(num_beams=...)` in transformers: a candidate that ends is a finished beam if it is among the first `width`,
and the first `width` of the others run on.

A pass over the running beams gives the distributions of one step. If it also covers beams that a drafter has proposed
for later steps, the search goes on without another pass as long as all its running beams are among those. The result is
that of plain search whatever was proposed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specdec.beams.options import BeamOptions, EarlyStopping, candidates


@dataclass(frozen=True, slots=True)
class Beam:
    """A continuation of the prompt."""

    tokens: tuple[int, ...]
    """Output tokens; of a finished beam with its end token."""
    score: float
    """Log probability of the tokens; of a finished beam divided by the length penalty."""


@dataclass(frozen=True, slots=True)
class BeamSearch:
    """State of a search between two steps. A step returns a new state."""

    options: BeamOptions
    ends: frozenset[int]
    """Ids that end a beam."""
    limit: int
    """Most tokens of a beam, at least 1."""
    running: tuple[Beam, ...] = (Beam((), 0.0),)
    """Beams to extend, best first, all of one length."""
    finished: tuple[Beam, ...] = ()
    """Best finished beams, best first."""
    done: bool = False

    @property
    def length(self) -> int:
        """Number of tokens of each running beam."""
        return len(self.running[0].tokens)

    @property
    def best(self) -> Beam:
        """The result of a search that is done."""
        return self.finished[0]

    def advanced(self, logprobs: Tensor) -> "BeamSearch":
        """Return the state after one step.

        Args:
            logprobs: log probabilities after each running beam, float32 [running, V]. V must be at least
                `candidates(width, len(ends))`.
        """
        width, length, vocab = self.options.width, self.length + 1, logprobs.shape[1]
        scores = torch.tensor([beam.score for beam in self.running], dtype=torch.float32, device=logprobs.device)
        total = (logprobs + scores[:, None]).reshape(-1)
        top, index = total.topk(candidates(width, len(self.ends)))
        found = [
            Beam((*self.running[place // vocab].tokens, place % vocab), score)
            for place, score in zip(index.tolist(), top.tolist(), strict=True)
        ]
        over = [length >= self.limit or beam.tokens[-1] in self.ends for beam in found]
        scored = (top[:width] / length**self.options.length_penalty).tolist()
        ended = [replace(found[at], score=scored[at]) for at in range(width) if over[at]]
        finished = sorted([*self.finished, *ended], key=lambda beam: -beam.score)[:width]
        running = [beam for beam, hit in zip(found, over, strict=True) if not hit][:width]
        after = replace(self, running=tuple(running) or self.running, finished=tuple(finished))
        return replace(after, done=not running or after._is_decided(length))

    def _is_decided(self, length: int) -> bool:
        """Whether the finished beams are final; `length` is that of the running beams."""
        options = self.options
        if len(self.finished) < options.width:
            return False
        if options.early_stopping is EarlyStopping.FULL:
            return True
        farthest = options.early_stopping is EarlyStopping.NEVER and options.length_penalty > 0.0
        reach = self.limit if farthest else length
        possible = torch.tensor(self.running[0].score, dtype=torch.float32) / reach**options.length_penalty
        return float(possible) <= self.finished[-1].score


def verified(search: BeamSearch, rows: Mapping[tuple[int, ...], Tensor]) -> tuple[BeamSearch, int]:
    """Advance a search by all steps that a pass covers.

    Args:
        rows: log probabilities after beams that the pass has computed, float32 [V], by the tokens of the beam. The
            running beams are among them.

    Returns:
        The state after the steps, and their number: 1, and one for each accepted step.
    """
    steps = 0
    while not search.done and all(beam.tokens in rows for beam in search.running):
        search = search.advanced(torch.stack([rows[beam.tokens] for beam in search.running]))
        steps += 1
    return search, steps
