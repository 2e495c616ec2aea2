"""The model card, filled in with measured values only."""

import platform
from dataclasses import dataclass
from pathlib import Path

from models.train.evaluate import HeldOutLoss
from specdec.training.step_cost import StepCost


@dataclass(frozen=True)
class Completion:
    """One sample of the target at a given temperature."""

    prompt: str
    text: str
    temperature: float


@dataclass(frozen=True)
class Facts:
    """Values shown on the card."""

    documents: int
    train_tokens: int
    held_out: tuple[str, ...]
    target: str
    drafter: str
    target_steps: int
    target_tokens: int
    drafter_steps: tuple[int, int, int]
    drafter_tokens: int
    seed: int
    device: str
    loss: HeldOutLoss
    alpha_sampled: float
    alpha_greedy: float
    cost: StepCost
    completions: tuple[Completion, ...]


def write_card(facts: Facts, folder: Path) -> None:
    """Write `README.md` and `held_out.txt` into the pair's folder."""
    (folder / "README.md").write_text(render(facts), encoding="utf-8")
    (folder / "held_out.txt").write_text("".join(f"{path}\n" for path in facts.held_out), encoding="utf-8")


def render(facts: Facts) -> str:
    """Return the card as Markdown."""
    sections = (_head(), _numbers(facts), _training(facts), _held_out(facts), _completions(facts))
    return "\n".join(sections)


def _head() -> str:
    return """---
language: code
license: psf-2.0
pipeline_tag: text-generation
---

# The demo pair

A deep, thin causal code model (`target/`) and a shallow drafter distilled from it (`drafter/`), in Hugging Face format
with one tokenizer. They exist so that speculative decoding can be run, tested and measured without a download:
they write text that looks like Python, not programs to rely on. This page is written by `make train-demo`.
"""


def _numbers(facts: Facts) -> str:
    return f"""## Measured

| | |
|---|---|
| target | {facts.target} |
| drafter | {facts.drafter} |
| held-out loss of the target | {facts.loss.nats_per_token:.3f} nats/token, {facts.loss.bits_per_byte:.3f} bits/byte |
| α at temperature 1 (mean Σ min(p, q)) | {facts.alpha_sampled:.3f} |
| α at temperature 0 (agreement of the argmax) | {facts.alpha_greedy:.3f} |
| c (drafter step / target step) | {facts.cost.c:.3f} |

α is measured on the target's own continuations of held-out prompts, at the temperature named. c is the ratio of median
1-token decode steps of the plain `transformers` modules, one thread, float32, on the training machine's
{facts.device}: {facts.cost.drafter_ms:.2f} ms and {facts.cost.target_ms:.2f} ms; it depends on the machine. Weights are
stored, and were measured, rounded to bfloat16.
"""


def _training(facts: Facts) -> str:
    steps = " + ".join(map(str, facts.drafter_steps))
    first, second, third = facts.drafter_steps
    options = f"--seed {facts.seed} --steps {facts.target_steps}"
    options += f" --drafter-steps {first} --refine-steps {second} --polish-steps {third}"
    return f"""## Training

* **Data**: {facts.documents} source files of the standard library of CPython {platform.python_version()}
  ({facts.train_tokens:,} tokens), without tests, third-party packages and generated tables. Nothing is downloaded.
* **Licence**: the text is under the Python Software Foundation License Version 2. The weights are under the same terms,
  since completions may repeat pieces of that text.
* **Tokenizer**: byte-level BPE trained on the same files; `<|endoftext|>` is bos, eos and pad.
* **Target**: {facts.target_steps:,} steps, {facts.target_tokens:,} tokens
  ({facts.target_tokens / facts.train_tokens:.1f} epochs), next-token cross-entropy, Muon and AdamW, warm-up / stable /
  decay schedule, bfloat16 autocast.
* **Drafter**: {steps} steps in {len(facts.drafter_steps)} rounds, {facts.drafter_tokens:,} tokens, on the corpus and
  on text the target wrote at several temperatures; starts as the target's first layers; forward KL to the target's
  distributions, then total variation (which is 1 − α).
* **Reproduce**: `make train-demo`, or `python -m models.train {options}`;
  it resumes after a kill. Another interpreter version has other sources, and
  another machine other rounding, so weights differ slightly.
"""


def _held_out(facts: Facts) -> str:
    return f"""## Held-out files

`held_out.txt` lists the {len(facts.held_out)} files that were never trained on.
"""


def _completions(facts: Facts) -> str:
    return "## Sample completions of the target\n\n" + "\n".join(map(_completion, facts.completions))


def _completion(sample: Completion) -> str:
    return f"Temperature {sample.temperature:g}, after `{sample.prompt!r}`:\n\n```python\n{sample.text}\n```\n"
