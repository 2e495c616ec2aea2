"""The drafter's model card, filled in with measured values."""

from collections.abc import Mapping
from dataclasses import dataclass

from specdec.training.evaluate import DraftAlpha
from specdec.training.step_cost import StepCost

ENOUGH = 0.5
"""Acceptance rate α below which sources without a model are the better default."""


@dataclass(frozen=True)
class DrafterFacts:
    """Values shown on the card."""

    target: str
    """Name of the target's folder."""
    layers: tuple[int, int]
    """Number of layers of the drafter and of the target."""
    ids: tuple[int, int]
    """Number of ids in the drafter's head and in the vocabulary."""
    prompts: str
    """Source of the prompts."""
    alphas: Mapping[str, DraftAlpha]
    cost: StepCost
    answers: int
    """Number of tokens of the target's own answers."""
    steps: int
    rows: int
    """Number of answers in one step."""
    command: str
    """Command that repeats the training."""


def render(facts: DrafterFacts) -> str:
    """Return the card as Markdown."""
    drafter, target = facts.layers
    return f"""---
pipeline_tag: text-generation
---

# A drafter for {facts.target}

The first {drafter} of the target's {target} layers, distilled from the target's own distributions, with the target's
embeddings and a head over {facts.ids[0]:,} of its {facts.ids[1]:,} ids, the most frequent ones (FR-Spec, arXiv
2502.14856). No other id is ever drafted, and q is sent as it was drawn from, so that acceptance stays exact. This page
is written by `specdec train drafter`.

## Measured

| category | α at temperature 1 | α at temperature 0 | tokens |
|---|---|---|---|
{_rows(facts.alphas)}

α at temperature 1 is the mean of Σ min(p, q) over the target's 64 likeliest ids; at temperature 0 it is the share of
tokens at which both argmaxes agree. Both are of the target's own answers to prompts that the drafter was not trained
on. c, the duration of a drafter's step relative to the target's, is {facts.cost.c:.3f}: {facts.cost.drafter_ms:.1f} ms
and {facts.cost.target_ms:.1f} ms of the plain `transformers` modules, one thread, float32. It depends on the machine.

{_verdict(facts)}

## Training

* **Data**: {facts.answers:,} tokens of the target's answers to {facts.prompts}, at temperatures 0, 0.7 and 1; of each
  token the target's 64 likeliest ids with their probabilities.
* **Steps**: {facts.steps:,} of {facts.rows} answers each; forward KL, then total variation, which is 1 − α.
* **Reproduce**: `{facts.command}`; it resumes after a kill. Another machine has other rounding, so weights differ
  slightly.
* **Licence**: the target's, whose weights the drafter begins from.
"""


def _rows(alphas: Mapping[str, DraftAlpha]) -> str:
    named = {**alphas, "all": mean(alphas)}
    return "\n".join(
        f"| {name} | {each.sampled:.3f} | {each.greedy:.3f} | {each.tokens:,} |" for name, each in named.items()
    )


def mean(alphas: Mapping[str, DraftAlpha]) -> DraftAlpha:
    """Return the unweighted mean over the categories."""
    rows = list(alphas.values())
    sampled, greedy = (sum(column) / len(rows) for column in zip(*((a.sampled, a.greedy) for a in rows), strict=True))
    return DraftAlpha(sampled, greedy, sum(each.tokens for each in rows))


def _verdict(facts: DrafterFacts) -> str:
    found = mean(facts.alphas)
    if min(found.sampled, found.greedy) >= ENOUGH:
        return f"α is at least {ENOUGH:g}: the drafter is worth its place."
    return (
        f"**α stays below {ENOUGH:g}.** Compare with the sources that need no model before using it: "
        f"`specdec up --target {facts.target} --local suffix,prompt_lookup`, and more answers and steps raise α."
    )
