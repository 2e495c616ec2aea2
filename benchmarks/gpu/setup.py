"""Sizes and folders of one run of `make gpu`, and the models that its phases share."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from benchmarks import machine
from benchmarks.gpu.padded import Size, pad_model
from benchmarks.pair import Pair

Shape = Literal["8b", "tiny"]
Device = Literal["cuda", "cpu"]
_SIZES = {
    "8b": (Size(4096, 14336, 32, 64, 16, 128256), Size(2048, 8192, 16, 32, 8, 128256)),
    "tiny": (Size(256, 640, 16, 4, 2, 2048), Size(256, 640, 2, 4, 2, 2048)),
}
"""Sizes of the padded target and drafter."""
_KV_BYTES = {"8b": 2**34, "tiny": 2**28}
_DEMO = machine.ROOT / "models" / "demo"
_DONE = "done"
"""File that marks the pair of a folder as complete."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Options of every phase."""

    shape: Shape
    device: Device
    quick: bool
    """Whether the run only shows that the code works."""
    resume: bool
    """Whether to skip cells already measured at this commit."""
    compiled: bool
    models: str
    """Folder of the padded pair, which is made when a phase first needs it."""

    def padded(self) -> Pair:
        """Return the demo pair padded with weights that change nothing, 19 GB for the shape `8b`."""
        root = Path(self.models) / f"large-{self.shape}"
        pair = Pair(root / "target", root / "drafter")
        if not (root / _DONE).exists():
            device = torch.device(self.device)
            for name, size in zip(("target", "drafter"), _SIZES[self.shape], strict=True):
                pad_model(_DEMO / name, root / name, size, device)
            (root / _DONE).touch()
            if self.device == "cuda":
                torch.cuda.empty_cache()
        return pair

    @property
    def arguments(self) -> list[str]:
        """Arguments of each `specdec up`."""
        return ["--dtype", "bfloat16", *(["--compile"] if self.compiled else [])]

    @property
    def variables(self) -> dict[str, str]:
        """Environment of each `specdec up`, with room for the keys and values of all streams."""
        return {f"SPECDEC_{role}_KV_BYTES": str(_KV_BYTES[self.shape]) for role in ("VERIFIER", "DRAFTER")}
