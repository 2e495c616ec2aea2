"""Proposed beams of a target's search: the draft model searches a few steps on its own (Leviathan et al., A.4)."""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from drafter_service.sessions.drafter import BeamPasses
from specdec.engine import Chunk, Engine
from specdec.wire.beams import BeamAsk, ProposedBeam


@dataclass(slots=True)
class _Root:
    """A running beam of the target, with the proposed beams that extend it as a tree."""

    name: str
    """Name of its sequence at the engine."""
    tokens: tuple[int, ...]
    """Prompt and beam."""
    nodes: list[int] = field(default_factory=list)
    """Indices of its proposed beams, step after step."""


@dataclass(frozen=True, slots=True)
class _Tip:
    """A beam that the next step may extend."""

    parent: int
    """The beam, as parents of proposed beams name it."""
    root: _Root
    score: float


def propose_beams(model: Engine, ask: BeamAsk, chunk_tokens: int) -> BeamPasses:
    """Propose the best `width` beams of each step by the target's scores and the model's own probabilities.

    Between calls, only the computed prefixes stay in the model's memory. Without memory for the beams, none are
    proposed. Only one computation at a time may have begun.

    Args:
        chunk_tokens: most tokens of the prompt to compute in one pass.
    """
    return _Proposals(model, chunk_tokens).propose(ask)


class _Proposals:
    def __init__(self, model: Engine, chunk_tokens: int) -> None:
        self._model = model
        self._chunk_tokens = chunk_tokens

    def propose(self, ask: BeamAsk) -> BeamPasses:
        roots: list[_Root] = []
        try:
            for number, (tokens, _) in enumerate(ask.beams):
                root = _Root(f"beam {number}", (*ask.prompt, *tokens))
                if not self._admit(root, ask):
                    return []
                roots.append(root)
                yield from self._prefill(root)
            return (yield from self._search(ask, roots))
        finally:
            for root in roots:
                self._model.release(root.name)

    def _admit(self, root: _Root, ask: BeamAsk) -> bool:
        """Admit a beam. It shares its common prefix with earlier beams."""
        model, limit = self._model, len(root.tokens) + ask.width * ask.steps
        if limit > model.context_length or not model.admit(root.name, limit, root.tokens, ask.cache_salt):
            return False
        if not model.reserve(root.name, limit):
            model.release(root.name)
            return False
        return True

    def _prefill(self, root: _Root) -> Iterator[None]:
        """Compute all tokens of a beam but the last."""
        while (done := self._model.length(root.name)) < len(root.tokens) - 1:
            piece = root.tokens[done : min(done + self._chunk_tokens, len(root.tokens) - 1)]
            self._model.forward([Chunk(root.name, piece, logits=0)])
            yield

    def _search(self, ask: BeamAsk, roots: Sequence[_Root]) -> Generator[None, None, list[ProposedBeam]]:
        nodes: list[ProposedBeam] = []
        tips = [_Tip(at, root, score) for at, (root, (_, score)) in enumerate(zip(roots, ask.beams, strict=True))]
        for step in range(ask.steps):
            logits = self._forward(tips, nodes, len(roots))
            tips = list(self._extended(ask, tips, logits, nodes, len(roots)))
            if not tips or step == ask.steps - 1:
                break
            yield
        return nodes

    def _forward(self, tips: Sequence[_Tip], nodes: Sequence[ProposedBeam], beams: int) -> Tensor:
        """Return the logits after each tip, float32 [tips, V]. Tips of one root are adjacent."""
        chunks = []
        for root in dict.fromkeys(tip.root.name for tip in tips):
            own = [tip for tip in tips if tip.root.name == root]
            chunks.append(_chunk(own[0].root, nodes, beams, len(own)))
            self._model.truncate(root, len(own[0].root.tokens) - 1)
        return self._model.forward(chunks)

    def _extended(
        self, ask: BeamAsk, tips: Sequence[_Tip], logits: Tensor, nodes: list[ProposedBeam], beams: int
    ) -> Iterator[_Tip]:
        """Add the beams of the next step to `nodes`, and yield those that may be extended, root by root."""
        scores = torch.tensor([tip.score for tip in tips], device=logits.device)
        total = logits.log_softmax(-1) + scores[:, None]
        top, index = total.reshape(-1).topk(min(ask.width, total.numel()))
        vocab = logits.shape[1]
        found = sorted(zip(index.tolist(), top.tolist(), strict=True))
        for place, score in found:  # in the order of the tips, so that the new ones of a root are adjacent
            tip, token = tips[place // vocab], place % vocab
            if token in ask.end_token_ids:
                continue
            tip.root.nodes.append(len(nodes))
            nodes.append(ProposedBeam(tip.parent, token))
            yield _Tip(beams + len(nodes) - 1, tip.root, score)


def _chunk(root: _Root, nodes: Sequence[ProposedBeam], beams: int, logits: int) -> Chunk:
    """Return the last token of a root with its tree of proposed beams, of which the last `logits` are tips."""
    if not root.nodes:
        return Chunk(root.name, root.tokens[-1:], logits=1)
    places = {node: place + 1 for place, node in enumerate(root.nodes)}
    parents = [-1, *(places.get(nodes[node].parent - beams, 0) for node in root.nodes)]
    tokens = (*root.tokens[-1:], *(nodes[node].token for node in root.nodes))
    return Chunk(root.name, tokens, logits=logits, parents=parents)
