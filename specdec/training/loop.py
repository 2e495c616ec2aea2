"""Training loop of both models: schedule, clipping, progress bar, checkpoints and resume."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor, nn
from torch.optim import Optimizer

from specdec.training import checkpoint
from specdec.training.optimizer import Schedule, set_learning_rates

_SMOOTHING = 0.95
_GRADIENT_NORM = 1.0


@dataclass(frozen=True)
class Run:
    """Name, length, checkpoint path and checkpoint interval (seconds) of a training run."""

    name: str
    schedule: Schedule
    tokens_per_step: int
    checkpoint: Path
    checkpoint_seconds: float = 120.0


def train(run: Run, model: nn.Module, optimizers: Sequence[Optimizer], loss_of: Callable[[int], Tensor]) -> None:
    """Run the remaining steps. `loss_of(step)` returns the scalar loss of a step, counted from 0.

    A killed run resumes from its last checkpoint and reaches the same weights, because a step depends only on the
    checkpointed state and its number.
    """
    first = checkpoint.restore(run.checkpoint, model, optimizers)
    model.train()
    with _progress() as bar:
        report = _Report(run, bar, first)
        for step in range(first, run.schedule.steps):
            loss = _step(model, optimizers, loss_of, step, run.schedule)
            report.step(step + 1, loss)
            if report.save_due() or step + 1 == run.schedule.steps:
                checkpoint.save(run.checkpoint, model, optimizers, step + 1)
                report.saved(step + 1)
    model.eval()


def _step(
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    loss_of: Callable[[int], Tensor],
    step: int,
    schedule: Schedule,
) -> float:
    set_learning_rates(optimizers, schedule.factor(step))
    loss = loss_of(step)
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.parameters(), _GRADIENT_NORM)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return loss.item()


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TextColumn("loss {task.fields[loss]:.3f}"),
        TextColumn("{task.fields[rate]:.0f} tokens/s"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )


class _Report:
    """Reports smoothed loss and throughput of one run, with a line per checkpoint for log files."""

    def __init__(self, run: Run, bar: Progress, first: int) -> None:
        self._run = run
        self._bar = bar
        self._first = first
        self._loss: float | None = None
        self._started = self._saved_at = time.monotonic()
        self._task: TaskID = bar.add_task(
            run.name, total=run.schedule.steps, completed=first, loss=float("nan"), rate=0.0
        )

    def step(self, done: int, loss: float) -> None:
        self._loss = loss if self._loss is None else _SMOOTHING * self._loss + (1 - _SMOOTHING) * loss
        self._bar.update(self._task, completed=done, loss=self._loss, rate=self._rate(done))

    def save_due(self) -> bool:
        return time.monotonic() - self._saved_at >= self._run.checkpoint_seconds

    def saved(self, done: int) -> None:
        self._saved_at = time.monotonic()
        self._bar.console.log(
            f"{self._run.name}: step {done}/{self._run.schedule.steps}, loss {self._loss:.3f}, "
            f"{self._rate(done):.0f} tokens/s"
        )

    def _rate(self, done: int) -> float:
        return (done - self._first) * self._run.tokens_per_step / (time.monotonic() - self._started)
