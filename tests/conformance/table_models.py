"""Tiny models given by tables of distributions, and a plain restatement of the sampling rules for comparison."""

import math
from collections.abc import Iterator, Sequence
from itertools import product

import torch
from torch import Tensor

from specdec.sampling import distribution as sampling
from specdec.sampling.distribution import History
from specdec.sampling.params import SamplingParams
from tests.conformance.automata import compiled, may_follow

Context = tuple[int, ...]


class TableModel:
    """A model whose logits depend on the whole context. Equal seeds give equal models."""

    def __init__(self, vocab_size: int, seed: int, scale: float = 1.5) -> None:
        self.vocab_size = vocab_size
        self._seed = seed
        self._scale = scale
        self._rows: dict[Context, Tensor] = {}

    def logits(self, context: Context) -> Tensor:
        """Return the logits after the context, float64 [V]."""
        if context not in self._rows:
            key = self._seed
            for token in context:
                key = key * 31 + token + 1
            generator = torch.Generator().manual_seed(key)
            self._rows[context] = self._scale * torch.randn(self.vocab_size, generator=generator, dtype=torch.float64)
        return self._rows[context]


def reference(logits: Tensor, params: SamplingParams, prompt: Sequence[int], output: Sequence[int]) -> list[float]:
    """Return one row's distribution, restated with lists and loops."""
    scores = [float(score) + params.logit_bias.get(token, 0.0) for token, score in enumerate(logits)]
    possible = set(params.allowed_token_ids or range(len(scores))) - set(params.banned_token_ids)
    text = tuple(output)
    possible -= {word[-1] for word in params.bad_words if (*text, word[-1])[-len(word) :] == word}
    if params.grammar:
        possible &= may_follow(params.grammar, tuple(output), len(scores))
    scores = [score if token in possible else -math.inf for token, score in enumerate(scores)]
    if len(output) < params.min_tokens:
        scores = [-math.inf if token in params.end_token_ids else score for token, score in enumerate(scores)]
    for token in {*prompt, *output}:
        scores[token] *= params.repetition_penalty if scores[token] < 0 else 1 / params.repetition_penalty
    for token in set(output):
        scores[token] -= params.presence_penalty + params.frequency_penalty * list(output).count(token)
    best = max(scores)
    if params.temperature == 0.0:
        winner = scores.index(best)
        return [float(token == winner) for token in range(len(scores))]
    mass = [math.exp((score - best) / params.temperature) for score in scores]
    if params.top_k:
        mass = _kept(mass, sorted(mass)[-min(params.top_k, len(mass))])
    mass = _nucleus(mass, params.top_p)
    mass = _kept(mass, params.min_p * max(mass))
    return [each / sum(mass) for each in mass]


def _kept(mass: Sequence[float], least: float) -> list[float]:
    return [each if each >= least else 0.0 for each in mass]


def _nucleus(mass: Sequence[float], top_p: float) -> list[float]:
    if top_p == 1.0:
        return list(mass)
    reached = 0.0
    for each in sorted(mass, reverse=True):
        reached += each
        if reached >= top_p * sum(mass):
            return _kept(mass, each)
    return list(mass)


def contexts(vocab_size: int, length: int) -> Iterator[Context]:
    """Return every sequence of `length` tokens, in lexicographic order."""
    return product(range(vocab_size), repeat=length)


def joint(model: TableModel, params: SamplingParams, prompt: Context, length: int) -> Tensor:
    """Return the exact law of `length` tokens after the prompt, float64 [V ** length], in `contexts` order."""
    return Tables(model, model, params, prompt).joint(length)


class Tables:
    """A target and a drafter with the same sampling parameters, by the real function and restated."""

    def __init__(
        self, target: TableModel, drafter: TableModel, params: SamplingParams | None = None, prompt: Context = ()
    ) -> None:
        self.vocab_size = target.vocab_size
        self.target, self.drafter = target, drafter
        self._params, self._prompt = params or SamplingParams(), prompt
        self._restated: dict[int, Tensor] = {}

    def p(self, outputs: Sequence[Context]) -> Tensor:
        """Return the target's distribution after each output, float64 [N, V], computed by the product."""
        return self._rows(self.target, outputs)

    def q(self, outputs: Sequence[Context]) -> Tensor:
        """Return the drafter's distribution after each output, float64 [N, V], computed by the product."""
        return self._rows(self.drafter, outputs)

    def reference(self, length: int) -> Tensor:
        """Return the target's restated distributions after every output of that length, float64 [V ** length, V]."""
        if length not in self._restated:
            rows = [
                reference(self.target.logits(self._prompt + output), self._params, self._prompt, output)
                for output in contexts(self.vocab_size, length)
            ]
            self._restated[length] = torch.tensor(rows, dtype=torch.float64)
        return self._restated[length]

    def joint(self, length: int) -> Tensor:
        """Return the expected law of `length` tokens, float64 [V ** length], in the order of `contexts`."""
        law = torch.ones(1, dtype=torch.float64)
        for step in range(length):
            law = (law[:, None] * self.reference(step)).flatten()
        return law

    def _rows(self, model: TableModel, outputs: Sequence[Context]) -> Tensor:
        logits = torch.stack([model.logits(self._prompt + output) for output in outputs])
        histories = [History(self._prompt, output, self._mask(output)) for output in outputs]
        return sampling.probabilities(logits, [self._params] * len(outputs), histories)

    def _mask(self, output: Context) -> bytes | None:
        """Return the mask of the product's grammar, or None after the end and after output that it does not allow."""
        if self._params.grammar is None:
            return None
        return compiled(self._params.grammar, self.vocab_size).masks((), output)[-1]


def pair(vocab_size: int, seed: int, params: SamplingParams | None = None) -> Tables:
    """Return a target and a drafter with very different distributions."""
    return Tables(TableModel(vocab_size, seed), TableModel(vocab_size, 1000 + seed), params)
