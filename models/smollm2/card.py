"""The drafter's model card, filled in with measured values."""

from collections.abc import Mapping
from dataclasses import dataclass

from models.smollm2 import distill
from models.smollm2.evaluate import Alpha
from models.train.evaluate import StepCost

ENOUGH = 0.5
"""Acceptance rate α below which sources without a model are the better default."""


@dataclass(frozen=True)
class Facts:
    """Values shown on the card."""

    alphas: Mapping[str, Alpha]
    cost: StepCost
    answers: int
    """Number of tokens of the target's own answers."""
    batches: int
    steps: int
    seed: int


def render(facts: Facts) -> str:
    """Return the card as Markdown."""
    return f"""---
license: apache-2.0
pipeline_tag: text-generation
---

# A drafter for SmolLM2-135M-Instruct

The first {distill.LAYERS} of the target's 30 layers, distilled from the target's own distributions, with the target's
embeddings and a head over {distill.HEAD:,} of its 49,152 ids, the most frequent ones (FR-Spec, arXiv 2502.14856): no
other id is ever drafted, and q is sent as it was drawn from, so that acceptance stays exact. This page is written by
`make train-smollm2-drafter`.

## Measured

| category | α at temperature 1 | α at temperature 0 | tokens |
|---|---|---|---|
{_rows(facts.alphas)}

On the target's own answers to `benchmarks/spec_bench.jsonl`, none of which the drafter was distilled on. α at
temperature 1 is the mean of Σ min(p, q) over the target's 64 likeliest ids; at temperature 0 it is the share of
tokens at which both argmaxes agree. c, a drafter's step in steps of the target, is {facts.cost.c:.3f}:
{facts.cost.drafter_ms:.1f} ms and {facts.cost.target_ms:.1f} ms of the plain `transformers` modules, one thread,
float32; it depends on the machine.

{_verdict(facts.alphas)}

## Training

* **Data**: {facts.batches} batches of the target's answers to prompts of `models/smollm2/prompts.py`, {facts.answers:,}
  tokens, at temperatures 0, 0.7 and 1; of each token the target's 64 likeliest ids with their probabilities.
* **Steps**: {facts.steps:,} of {distill.ROWS} answers each; forward KL, then total variation, which is 1 − α.
* **Reproduce**: `python -m models.smollm2 --batches {facts.batches} --steps {facts.steps} --seed {facts.seed}`;
  it resumes after a kill. Another machine has other rounding, so weights differ slightly.
* **Licence**: Apache-2.0, as the target's, whose weights it begins from.
"""


def _rows(alphas: Mapping[str, Alpha]) -> str:
    named = {**alphas, "all": mean(alphas)}
    return "\n".join(
        f"| {name} | {each.sampled:.3f} | {each.greedy:.3f} | {each.tokens:,} |" for name, each in named.items()
    )


def mean(alphas: Mapping[str, Alpha]) -> Alpha:
    """Return the unweighted mean over the categories."""
    rows = list(alphas.values())
    sampled, greedy = (sum(column) / len(rows) for column in zip(*((a.sampled, a.greedy) for a in rows), strict=True))
    return Alpha(sampled, greedy, sum(each.tokens for each in rows))


def _verdict(alphas: Mapping[str, Alpha]) -> str:
    found = mean(alphas)
    if min(found.sampled, found.greedy) >= ENOUGH:
        return f"α is over {ENOUGH:g}: the drafter is worth its place."
    return (
        f"**α stays below {ENOUGH:g}.** So `specdec up --target smollm2` drafts without a model, and this drafter is "
        f"used only where `--drafter` names it."
    )
