"""`python -m models.smollm2`: distil a drafter for smollm2 from the target's own answers."""

from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from transformers.utils import logging as transformers_logging

from models.smollm2 import answers, card, distill
from models.smollm2.evaluate import alphas
from models.train import compute
from models.train.architecture import export, load
from models.train.evaluate import StepCost, step_cost
from specdec.cli import known_models
from specdec.engine import draft_head
from specdec.errors import ConfigError

_TARGET = "smollm2"
_DRAFTER = "smollm2-drafter"


def main(  # noqa: PLR0913 - a command's options are its parameters
    batches: Annotated[int, typer.Option(min=1, help="Batches of 96 answers that the target writes.")] = 40,
    steps: Annotated[int, typer.Option(min=1, help="Distillation steps of 16 answers.")] = 1200,
    seed: Annotated[int, typer.Option(help="Decides prompts, answers and their order.")] = 0,
    target: Annotated[str, typer.Option(help="Folder of the target, or its name in `specdec models list`.")] = _TARGET,
    out: Annotated[Path | None, typer.Option(help="Where the drafter goes; beside the target when left out.")] = None,
    state: Annotated[Path | None, typer.Option(help="Where answers and checkpoints are kept.")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads; PyTorch's choice if left out.")] = None,
) -> None:
    """Generate the target's answers, distil, export and measure the drafter; rerun it after a kill to resume."""
    transformers_logging.disable_progress_bar()
    machine = compute.choose("cpu", threads, compiled=False)
    teacher = answers.load_teacher(_folder(target))
    place, kept = out or known_models.cache() / _DRAFTER, state or known_models.cache() / ".training" / _DRAFTER
    taught = [answers.batch(number, teacher, seed, kept) for number in range(batches)]
    ids = distill.frequent_ids(taught, teacher.model.config.vocab_size, distill.HEAD)
    drafter = distill.distil(distill.Job(taught, steps, seed, kept), teacher.model, ids, machine)
    place.mkdir(parents=True, exist_ok=True)
    drafter.config.draft_head = draft_head.save_head(place, ids)
    export(drafter, teacher.tokenizer, place)
    facts = card.Facts(
        alphas(teacher, load(place), ids, seed),
        _cost(_folder(target), place, ids),
        sum(int(distill.own_tokens(each).sum()) for each in taught),
        batches,
        steps,
        seed,
    )
    (place / "README.md").write_text(card.render(facts), encoding="utf-8")
    found = card.mean(facts.alphas)
    Console(stderr=True).log(
        f"α {found.sampled:.3f} at temperature 1 and {found.greedy:.3f} at 0, c {facts.cost.c:.3f}; written to {place}"
    )


def _folder(target: str) -> Path:
    found = Path(target) if Path(target).is_dir() else known_models.find(target)
    if found is None:
        raise ConfigError(f"--target {target} is not on this machine: specdec models get {target}")
    return found


def _cost(target: Path, drafter: Path, ids: torch.Tensor) -> StepCost:
    small = load(drafter)
    small.set_output_embeddings(draft_head.DraftHead(small.get_output_embeddings(), ids))
    return step_cost(load(target), small)


if __name__ == "__main__":
    typer.run(main)
