"""Training of a drafter, from the target's folder to the drafter's folder and its card."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from specdec.engine import draft_head
from specdec.training import answers, card, checkpoint, compute, distil, evaluate, prompts
from specdec.training.evaluate import DraftAlpha
from specdec.training.step_cost import StepCost, step_cost
from specdec.training.weights import check_target, export, load, read_config

_HELD_OUT = 96
"""Number of built-in prompts that measure a drafter without questions of its own."""
_HELD_OUT_SEED = 2**31
"""Seed of these prompts, far from those of the taught ones."""


@dataclass(frozen=True)
class DrafterPlan:
    """Options of a training run: models, data and output folder."""

    target: Path
    """Folder of the target."""
    out: Path
    """Folder of the drafter."""
    state: Path
    """Folder of answers and checkpoints, which a killed run resumes from."""
    data: Path | None = None
    """File of prompts that the target answers; None takes the built-in ones."""
    questions: Path | None = None
    """File in the format of Spec-Bench that measures the drafter; None takes prompts held out of `data`."""
    batches: int = 40
    """Number of batches of 96 answers."""
    steps: int = 1200
    """Number of distillation steps of 16 answers."""
    layers: int = 2
    """Number of the target's first layers that the drafter has."""
    seed: int = 0
    threads: int | None = None
    """Number of CPU threads; None takes PyTorch's choice."""


@dataclass(frozen=True)
class _Data:
    """Prompts of a plan."""

    draw: answers.Prompts
    asked: Mapping[str, Sequence[str]]
    """Messages that measure the drafter, by category."""
    about: str


def train_drafter(plan: DrafterPlan) -> Mapping[str, DraftAlpha]:
    """Train, or resume training, a drafter; write its folder with the card, and return α by category.

    Raises:
        ConfigError: the target cannot be distilled, a file cannot be used, or the state is of another plan.
    """
    check_target(read_config(plan.target), plan.layers)
    data, machine = _data(plan), compute.choose("cpu", plan.threads, compiled=False)
    _claim(plan)
    console = Console(stderr=True)
    teacher = answers.load_teacher(plan.target)
    taught = [
        answers.batch(number, teacher, data.draw, plan.seed, plan.state)
        for number in track(range(plan.batches), "answers of the target", console=console)
    ]
    vocabulary = int(teacher.model.get_output_embeddings().weight.shape[0])
    ids = distil.frequent_ids(taught, vocabulary, distil.HEAD)
    job = distil.DistilJob(taught, plan.steps, plan.seed, plan.state, plan.layers)
    drafter = distil.distil(job, teacher.model, ids, machine)
    plan.out.mkdir(parents=True, exist_ok=True)
    drafter.config.draft_head = draft_head.save_head(plan.out, ids)
    export(drafter, teacher.tokenizer, plan.out)
    with console.status("measuring the drafter"):
        found = evaluate.alphas(teacher, load(plan.out), ids, data.asked, plan.seed)
        cost = _cost(plan, ids)
    named = f" --data {plan.data.name}" if plan.data else ""
    options = f"--batches {plan.batches} --steps {plan.steps} --layers {plan.layers} --seed {plan.seed}"
    facts = card.DrafterFacts(
        target=plan.target.name,
        layers=(plan.layers, teacher.model.config.num_hidden_layers),
        ids=(len(ids), vocabulary),
        prompts=data.about,
        alphas=found,
        cost=cost,
        answers=sum(int(distil.own_tokens(each).sum()) for each in taught),
        steps=plan.steps,
        rows=distil.ROWS,
        command=f"specdec train drafter --target {plan.target.name}{named} {options}",
    )
    (plan.out / "README.md").write_text(card.render(facts), encoding="utf-8")
    return found


def _data(plan: DrafterPlan) -> _Data:
    own = prompts.read_prompts(plan.data) if plan.data else None
    if plan.questions:
        asked = evaluate.questions(plan.questions)
    elif own:
        asked = {"held out": own.held_out[:_HELD_OUT]}
    else:
        asked = {"built-in": prompts.prompts(_HELD_OUT, _HELD_OUT_SEED + plan.seed)}
    if own and plan.data:
        return _Data(own.draw, asked, f"prompts of `{plan.data.name}`")
    return _Data(prompts.prompts, asked, "built-in prompts")


def _claim(plan: DrafterPlan) -> None:
    data = hashlib.sha256(plan.data.read_bytes()).hexdigest() if plan.data else "built-in"
    checkpoint.claim(plan.state, plan.target, {"data": data, "seed": plan.seed, "layers": plan.layers})


def _cost(plan: DrafterPlan, ids: Any) -> StepCost:
    small = load(plan.out)
    small.set_output_embeddings(draft_head.DraftHead(small.get_output_embeddings(), ids))
    return step_cost(load(plan.target), small)
