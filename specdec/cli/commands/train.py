"""`specdec train`: train a drafter or a draft head for a target."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ByteSize, TypeAdapter, ValidationError
from rich.console import Console

from specdec.cli import known_models
from specdec.cli.exit_codes import EPILOG
from specdec.errors import ConfigError

train = typer.Typer(epilog=EPILOG, no_args_is_help=True, help="Train a drafter or a draft head for a target.")


@train.callback()
def _group() -> None:
    """Make typer keep the subcommand's name even if the group has only one."""


@train.command(epilog=EPILOG)
def drafter(
    target: Annotated[str, typer.Option(help="Folder of the target, or its name in `specdec models list`.")],
    data: Annotated[
        Path | None,
        typer.Option(
            help="Prompts like yours, one a line, or .jsonl with prompt, turns or messages; others are built in."
        ),
    ] = None,
    questions: Annotated[
        Path | None,
        typer.Option(help="File of questions that measure α, rows with category and turns; default: held-out prompts."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the drafter; TARGET-drafter when left out.")] = None,
    state: Annotated[Path | None, typer.Option(help="Folder of answers and checkpoints, to resume from.")] = None,
    batches: Annotated[int, typer.Option(min=1, help="Batches of 96 answers that the target writes.")] = 40,
    steps: Annotated[int, typer.Option(min=1, help="Distillation steps of 16 answers.")] = 1200,
    layers: Annotated[
        int, typer.Option(min=1, help="Number of the target's first layers that the drafter starts from.")
    ] = 2,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the choice of prompts, the answers and their order.")] = 0,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; PyTorch's choice when left out.")] = None,
) -> None:
    """Distil a small drafter from the target's own answers, and write its folder with a card that states α.

    Takes hours on a CPU; run it again after a kill to resume.
    """
    folder = _folder(target)
    with _packages():
        from specdec.training.card import mean
        from specdec.training.drafter import DrafterPlan, train_drafter
    place = out or known_models.cache() / f"{folder.name}-drafter"
    kept = state or known_models.cache() / ".training" / place.name
    plan = DrafterPlan(folder, place, kept, data, questions, batches, steps, layers, seed, threads)
    found = mean(train_drafter(plan))
    rates = f"α {found.sampled:.3f} at temperature 1 and {found.greedy:.3f} at 0"
    Console(stderr=True).print(
        f"{rates}; written to {place}\nTry it: specdec up --target {target} --drafter {place}", soft_wrap=True
    )


@train.command(epilog=EPILOG)
def head(
    target: Annotated[str, typer.Option(help="Folder of the target, or its name in `specdec models list`.")],
    prompts: Annotated[
        list[Path] | None,
        typer.Option(
            help="Prompts like yours, one a line, or .jsonl with prompt, turns or messages; may be repeated. Without "
            "any: built-in ones, and messages that the target writes."
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="texts.npz of an earlier head of this target: texts to learn before new ones.")
    ] = None,
    tokens: Annotated[
        int, typer.Option(min=1, help="Tokens that the target writes, with those of --data.")
    ] = 1_000_000,
    questions: Annotated[
        Path | None,
        typer.Option(help="File of questions that measure α, rows with category and turns; default: held-out prompts."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the head; TARGET-head when left out.")] = None,
    state: Annotated[
        Path | None,
        typer.Option(help="Folder of texts and checkpoints, to resume from or to continue with more tokens."),
    ] = None,
    start: Annotated[
        Path | None,
        typer.Option(help="Folder of an earlier head of this target to continue from; keeps its draft ids."),
    ] = None,
    draft_ids: Annotated[int, typer.Option(min=1, help="Number of ids that the head drafts.")] = 8192,
    epochs: Annotated[float, typer.Option(min=0.01, help="Number of passes over the texts.")] = 4.0,
    disk: Annotated[str, typer.Option(help="Largest size of the texts with their states on disk.")] = "16GiB",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the choice of prompts, the texts and their order.")] = 0,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; PyTorch's choice when left out.")] = None,
) -> None:
    """Train a draft head on texts that the target writes, and write its folder with a card that states α.

    Takes hours on a CPU, less on a GPU if there is one; run it again after a kill to resume.
    """
    folder = _folder(target)
    try:
        most = TypeAdapter(ByteSize).validate_python(disk)
    except ValidationError as error:
        raise ConfigError(f"--disk {disk} is no size, such as 16GiB") from error
    with _packages():
        from specdec.training.heads.folder import mean
        from specdec.training.heads.head import train_head
        from specdec.training.heads.writer import HeadPlan
    place = out or known_models.cache() / f"{folder.name}-head"
    kept = state or known_models.cache() / ".training" / place.name
    plan = HeadPlan(
        folder,
        place,
        kept,
        tuple(prompts or ()),
        data,
        questions,
        tokens,
        draft_ids,
        epochs,
        most,
        seed,
        threads,
        start,
    )
    found = mean(train_head(plan))
    rates = f"α {found.sampled[0]:.3f} at temperature 1 and {found.greedy[0]:.3f} at 0 for the first draft"
    Console(stderr=True).print(
        f"{rates}; written to {place}\nTry it: specdec up --target {target} --head {place}", soft_wrap=True
    )


@contextmanager
def _packages() -> Iterator[None]:
    """Disable transformers' progress bars. Raise ConfigError with the extra to install if packages are missing."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(f"training needs the packages of the extra drafter: {error}") from error
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()


def _folder(target: str) -> Path:
    found = Path(target) if Path(target).is_dir() else known_models.find(target)
    if found is None:
        raise ConfigError(f"--target {target} is no folder, and not on this machine: specdec models get {target}")
    return found
