"""The target's passes over the beams of one search. Runs on the model thread."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor

from specdec.beams.search import Beam, BeamSearch, verified
from specdec.engine import Chunk, NativeEngine
from specdec.wire.beams import MOST_NODES, ProposedBeam

Tokens = tuple[int, ...]


class NoRoom(Exception):
    """There is no memory for the beams now. The search can continue from its last state when memory is free."""


@dataclass(frozen=True, slots=True)
class _Part:
    """The share of a pass of one running beam."""

    beam: Beam
    name: str
    """Name of its sequence at the engine."""
    start: int
    """Number of its computed tokens before the pass."""
    pending: tuple[int, ...]
    """Its other tokens, at least one."""
    nodes: tuple[int, ...] = ()
    """Indices of the proposed beams that extend it."""


class TargetBeams:
    """The sequences of one search at the engine. Beams share the KV of their common prefixes.

    A running beam has a sequence of its own. A beam that several new ones extend keeps its sequence for the first of
    them; the others are admitted with the prefix that they have in common.
    """

    def __init__(
        self, name: str, engine: NativeEngine, prompt: Sequence[int], limit: int, cache_salt: str, chunk: int
    ) -> None:
        """Create the beams of a search, without memory.

        Args:
            name: name of the search, unique at the engine.
            limit: most tokens of prompt and output together.
            cache_salt: searches and sessions of one salt share computed prefixes.
            chunk: most tokens of the prompt to compute in one pass.
        """
        self._name = name
        self._numbers = count()
        self._engine = engine
        self._prompt = tuple(prompt)
        self._limit = min(limit + MOST_NODES, engine.context_length)
        self._cache_salt = cache_salt
        self._chunk = chunk
        self._names: dict[Tokens, str] = {}
        """Sequence of each running beam, by its output tokens."""
        self.cached = 0
        """Number of prompt tokens that had KV at the first pass."""

    def prefill(self) -> bool:
        """Compute a piece of the prompt; return whether the next pass can compute the rest.

        Raises:
            NoRoom: there is no memory for the prompt.
        """
        name = self._names.get(())
        if name is None:
            name = self._admit(())
            self.cached = self._engine.length(name)
        done = self._engine.length(name)
        piece = self._prompt[done : done + self._chunk]
        if len(self._prompt) - done <= self._chunk:
            return True
        self._reserve(name, done + len(piece))
        self._engine.forward([Chunk(name, piece, logits=0)])
        return False

    def advance(self, search: BeamSearch, proposed: Sequence[ProposedBeam]) -> tuple[BeamSearch, int]:
        """Run one pass over the running beams and the proposed ones.

        Returns:
            The state of the search after all steps that the pass covers, and their number.

        Raises:
            NoRoom: there is no memory for the beams; the state of the search is unchanged.
        """
        for beam in search.running:
            if beam.tokens not in self._names:
                self._admit(beam.tokens)
        parts = [self._part(beam) for beam in search.running]
        tokens = _tokens_of(search, proposed)
        parts = self._with_nodes(parts, proposed)
        for part in parts:
            self._reserve(part.name, part.start + len(part.pending) + len(part.nodes))
        logits = self._engine.forward([_chunk(part, proposed, len(parts)) for part in parts])
        after, steps = verified(search, _rows(parts, tokens, logits.float().log_softmax(-1)))
        self._keep(parts, tokens, after)
        return after, steps

    def release(self) -> None:
        """Free the memory of all beams."""
        for name in self._names.values():
            self._engine.release(name)
        self._names.clear()

    def _part(self, beam: Beam) -> _Part:
        name, whole = self._names[beam.tokens], (*self._prompt, *beam.tokens)
        start = self._engine.length(name)
        return _Part(beam, name, start, whole[start:])

    def _with_nodes(self, parts: Sequence[_Part], proposed: Sequence[ProposedBeam]) -> list[_Part]:
        """Give each part the proposed beams that extend it, unless they pass the context."""
        roots: list[int] = []
        for node in proposed:
            roots.append(node.parent if node.parent < len(parts) else roots[node.parent - len(parts)])
        found = []
        for index, part in enumerate(parts):
            own = tuple(node for node, root in enumerate(roots) if root == index)
            fits = part.start + len(part.pending) + len(own) <= self._limit
            found.append(_Part(part.beam, part.name, part.start, part.pending, own if fits else ()))
        return found

    def _keep(self, parts: Sequence[_Part], tokens: Sequence[Tokens], after: BeamSearch) -> None:
        """Keep the KV of the new running beams, and free that of the others."""
        running = () if after.done else after.running
        begun, names = len(parts[0].beam.tokens), dict[Tokens, str]()
        forks: list[Tokens] = []
        for part in parts:
            own = [beam.tokens for beam in running if beam.tokens[:begun] == part.beam.tokens]
            if own:
                self._engine.keep(part.name, part.start, _path(part, tokens, own[0]))
                names[own[0]] = part.name
                forks += own[1:]
        ended = [part.name for part in parts if part.name not in names.values()]
        self._names = names
        try:
            for each in forks:
                self._admit(each)
        except NoRoom:
            self.release()
        finally:
            for name in ended:
                self._engine.release(name)

    def _admit(self, output: Tokens) -> str:
        name, whole = f"{self._name} {next(self._numbers)}", (*self._prompt, *output)
        if not self._engine.admit(name, self._limit, whole, self._cache_salt):
            raise NoRoom
        self._names[output] = name
        return name

    def _reserve(self, name: str, length: int) -> None:
        if not self._engine.reserve(name, length):
            raise NoRoom


def _tokens_of(search: BeamSearch, proposed: Sequence[ProposedBeam]) -> list[Tokens]:
    """Return the output tokens of each proposed beam."""
    beams = [beam.tokens for beam in search.running]
    for node in proposed:
        beams.append((*beams[node.parent], node.token))
    return beams[len(search.running) :]


def _chunk(part: _Part, proposed: Sequence[ProposedBeam], beams: int) -> Chunk:
    """Return the tokens of a part: the pending ones, then the proposed beams as a tree after them."""
    tokens = (*part.pending, *(proposed[node].token for node in part.nodes))
    if not part.nodes:
        return Chunk(part.name, tokens, logits=1)
    last = len(part.pending) - 1
    places = {node: last + 1 + place for place, node in enumerate(part.nodes)}
    parents = [*range(-1, last), *(places.get(proposed[node].parent - beams, last) for node in part.nodes)]
    return Chunk(part.name, tokens, logits=1 + len(part.nodes), parents=parents)


def _rows(parts: Sequence[_Part], tokens: Sequence[Tokens], logprobs: Tensor) -> Mapping[Tokens, Tensor]:
    """Return the rows of a pass by the output tokens before them."""
    rows: dict[Tokens, Tensor] = {}
    own = iter(torch.unbind(logprobs))
    for part in parts:
        for beam in (part.beam.tokens, *(tokens[node] for node in part.nodes)):
            row = next(own)
            rows.setdefault(beam, row)
    return rows


def _path(part: _Part, tokens: Sequence[Tokens], beam: Tokens) -> list[int]:
    """Return the path of a new running beam without its last token, as indices among the tokens of the part."""
    found, places = list(range(len(part.pending))), {tokens[node]: at for at, node in enumerate(part.nodes)}
    for end in range(len(part.beam.tokens) + 1, len(beam)):
        found.append(len(part.pending) + places[beam[:end]])
    return found
