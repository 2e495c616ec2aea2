"""`python -m models.train`: train the demo pair from the running interpreter's own standard library."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from transformers.utils import logging as transformers_logging

from models.train import pipeline
from specdec.training import compute

_MODELS = Path(__file__).resolve().parent.parent


def main(  # noqa: PLR0913 - a command's options are its parameters
    steps: Annotated[int, typer.Option(help="Target steps; may change on resume before the decay starts.")] = 920,
    drafter_steps: Annotated[int, typer.Option(help="Distillation steps, first round.")] = 1200,
    refine_steps: Annotated[int, typer.Option(help="Distillation steps, second round.")] = 300,
    polish_steps: Annotated[int, typer.Option(help="Distillation steps, third round.")] = 1200,
    device: Annotated[
        Literal["auto", "cpu", "cuda"], typer.Option(help="Where to train; auto takes a GPU when there is one.")
    ] = "auto",
    seed: Annotated[int, typer.Option(help="Decides the split, the initial weights and the order of the data.")] = 0,
    out: Annotated[Path, typer.Option(help="Where the pair goes.")] = _MODELS / "demo",
    state: Annotated[Path, typer.Option(help="Where checkpoints are kept.")] = _MODELS / ".training",
    threads: Annotated[int | None, typer.Option(help="CPU threads; PyTorch's choice if left out.")] = None,
    compiled: Annotated[bool, typer.Option("--compile/--no-compile", help="Fuse kernels with torch.compile.")] = True,
) -> None:
    """Train, export and measure the demo pair; rerun it after a kill to resume."""
    transformers_logging.disable_progress_bar()
    plan = pipeline.Plan(steps, (drafter_steps, refine_steps, polish_steps), seed, out, state)
    facts = pipeline.run(plan, compute.choose(device, threads, compiled))
    Console(stderr=True).log(
        f"held-out loss {facts.loss.nats_per_token:.3f} nats/token, α {facts.alpha_sampled:.3f} at temperature 1 and "
        f"{facts.alpha_greedy:.3f} at 0, c {facts.cost.c:.3f}; written to {out}"
    )


if __name__ == "__main__":
    typer.run(main)
