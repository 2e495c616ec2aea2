"""The demo pair in this process: both engines, and held-out prompts."""

import sysconfig
from dataclasses import dataclass
from pathlib import Path

from transformers import AutoTokenizer

from specdec.engine import NativeEngine

DEMO = Path(__file__).parents[2] / "models" / "demo"
TARGET, DRAFTER = DEMO / "target", DEMO / "drafter"
KV_BYTES = 2**29
PROMPT = 48
"""Tokens of a prompt."""


@dataclass(frozen=True)
class Pair:
    """A target and its drafter."""

    target: NativeEngine
    drafter: NativeEngine

    @classmethod
    def load(cls) -> "Pair":
        """Load the demo pair in float32 with one thread."""
        return cls(*(_engine(folder) for folder in (TARGET, DRAFTER)))


def prompts(count: int) -> list[tuple[int, ...]]:
    """Return the beginnings of held-out files of this interpreter's library, as token ids."""
    tokenizer = AutoTokenizer.from_pretrained(TARGET, local_files_only=True)
    library = Path(sysconfig.get_paths()["stdlib"])
    names = (DEMO / "held_out.txt").read_text(encoding="utf-8").split()
    found = []
    for name in names:
        if (library / name).exists():
            ids = tokenizer((library / name).read_text(encoding="utf-8")[: 16 * PROMPT])["input_ids"][:PROMPT]
            found += [tuple(ids)] if len(ids) == PROMPT else []
    return found[:count]


def _engine(folder: Path) -> NativeEngine:
    return NativeEngine.load(folder, dtype="float32", device="cpu", kv_bytes=KV_BYTES, threads=1)
