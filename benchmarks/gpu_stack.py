"""`python -m benchmarks.gpu_stack`: the whole system on one GPU, the demo pair at the cost of an 8B and a 1B model.

Nothing is downloaded: both models are padded, and compute what they do without it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal

import torch
import typer
from rich.console import Console

from benchmarks import machine
from benchmarks.padded import Size, pad_model
from benchmarks.pages import publish
from benchmarks.pair import Pair
from benchmarks.random_pair import require_device
from benchmarks.results import Report, show
from benchmarks.sections.grid_cells import Grid, Loaded, Timing
from benchmarks.sections.grid_stack import LoadedStack
from benchmarks.sections.lab import Lab
from benchmarks.sections.scale import Scale
from benchmarks.stack import running

_TEXT = """\
`specdec up --compile --dtype bfloat16` with both models on one GPU, which they share in turns. They are the demo pair,
padded with weights that change nothing to the size of Llama 3.1 8B and Llama 3.2 1B: their drafts are as good as the
demo's are, and passes take what those of such models take, but for verdicts, which look at 2,048 ids. Slices of
{seconds:g} s take turns on one system, longer ones where fewer than three streams draft; in a slice each stream asks
for another text whenever its answer of {tokens} tokens has ended, and the starts are spread."""
_SHAPES = {
    "8b": (Size(4096, 14336, 32, 64, 16, 128256), Size(2048, 8192, 16, 32, 8, 128256)),
    "tiny": (Size(256, 640, 16, 4, 2, 2048), Size(256, 640, 2, 4, 2, 2048)),
}
_VARYING = 3


@contextmanager
def _padded(pair: Pair, sizes: tuple[Size, Size], device: torch.device, folder: Path | None) -> Iterator[Pair]:
    """The pair at those sizes, in a folder for as long as the block lasts."""
    with TemporaryDirectory(dir=folder) as root:
        made = Pair(Path(root) / "large" / "target", Path(root) / "large" / "drafter")
        for source, to, size in zip((pair.target, pair.drafter), (made.target, made.drafter), sizes, strict=True):
            pad_model(source, to, size, device)
        if device.type == "cuda":
            torch.cuda.empty_cache()
        yield made


@contextmanager
def _system(pair: Pair, drafter: str, *, compiled: bool) -> Iterator[Loaded]:
    arguments = ["--dtype", "bfloat16", "--drafter-kind", drafter, *(["--compile"] if compiled else [])]
    with running(pair, *arguments) as system:
        yield LoadedStack(system)


def measure(scale: Scale) -> Report:
    """Every cell."""
    seconds = scale.grid_seconds
    timing = Timing(seconds, scale.grid_turns, scale.learning, _VARYING)
    text = _TEXT.format(seconds=seconds, tokens=scale.grid_tokens)
    with Lab(scale) as lab:
        system = partial(_system, scale.pair, compiled=scale.compiled)
        return Grid("gpu_stack", text, timing, system).measure(lab)


def main(
    shape: Annotated[Literal["8b", "tiny"], typer.Option(help="Of the models.")] = "8b",
    device: Annotated[Literal["cuda", "cpu"], typer.Option(help="Where the models are made.")] = "cuda",
    seconds: Annotated[float, typer.Option(help="Of a slice.")] = 0.6,
    turns: Annotated[int, typer.Option(help="Of each way in a cell.")] = 3,
    folder: Annotated[Path | None, typer.Option(help="Where the models are for the time, 19 GB.")] = None,
    compiled: Annotated[bool, typer.Option("--compile/--no-compile", help="Our models, as `model.compile`.")] = True,
) -> None:
    """Measure, show and keep the figures."""
    require_device(device)
    load, demo = machine.load(), machine.ROOT / "models" / "demo"
    sizes = _SHAPES[shape]
    with _padded(Pair(demo / "target", demo / "drafter"), sizes, torch.device(device), folder) as pair:
        whole = replace(
            Scale(pair), grid_drafters=("model",), grid_temperatures=("0", "1"), grid_gammas=(4,), grid_turns=turns,
            grid_seconds=seconds, compiled=compiled,
        )  # fmt: skip
        report = measure(whole if shape == "8b" else replace(whole, sessions=(1, 2), grid_tokens=8))
    if shape == "8b" and device == "cuda":
        publish(report, "python -m benchmarks.gpu_stack", load=load)
    else:
        show(Console(width=140), report)


if __name__ == "__main__":
    typer.run(main)
