"""`python -m benchmarks.kv`: time to restore keys and values from Redis against the time to recompute them.

One engine computes a prompt, exports its blocks and stores them in a server started for it. Another engine fetches and
checks them. Both times end with the logits after the prompt, and both engines then continue greedily. gRPC, which
connects the processes of a real system, is left out.
"""

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
import torch

from benchmarks import machine
from benchmarks.reports.pages import add_out, publish
from benchmarks.reports.results import Figure, Report, Table
from benchmarks.reports.statistics import Ratio, paired, spread
from benchmarks.sessions import servers
from specdec.engine import Chunk, NativeEngine
from specdec.engine.kv.frame import Flaw, frame, unframe
from specdec.rules import blocks

BLOCK_TOKENS = 256
PIECE = 512
"""Prompt tokens in one pass."""
GOES_ON = 16
"""Tokens that both engines generate after the prompt."""
POSITIONS = 8192
_DEMO = machine.ROOT / "models" / "demo" / "target"
_TEXT = """\
To the logits of a prompt, in process: computing it in pieces of 512 tokens against fetching its blocks of 256 from
a Redis of their own, checking and writing them. Medians of runs in turn, and the middle half in brackets. Keys, values
and logits of both are compared to the bit, and so are the greedy tokens that follow."""


@dataclass(frozen=True, slots=True)
class Row:
    """Times for one prompt length: the seconds to the logits after the prompt in each run."""

    tokens: int
    mib: float
    """MiB of the blocks."""
    prefill: Sequence[float]
    restore: Sequence[float]
    equal: bool
    """Whether keys, values and logits are equal to the bit in every run."""
    same: bool
    """Whether the generated tokens are equal in every run."""

    @property
    def faster(self) -> Ratio:
        """Time of computing divided by time of restoring."""
        return paired(self.prefill, self.restore)


class Bench:
    """Two engines of one model, and a server between them."""

    def __init__(self, first: NativeEngine, second: NativeEngine, store: redis.Redis) -> None:
        self._first = first
        self._second = second
        self._store = store

    def row(self, tokens: int, repeats: int) -> Row:
        """Compute with one engine, restore with the other, and compare."""
        prompt = [(7 + 31 * i * i) % self._first.vocab_size for i in range(tokens + 1)]
        ends = range(BLOCK_TOKENS, tokens + 1, BLOCK_TOKENS)
        hashes = blocks.chain(blocks.root(self._first.facts.fingerprint), prompt[:tokens])
        keys = {end: hashes[end // blocks.BLOCK_TOKENS - 1] for end in ends}
        prefill, restore, equal, same, size = [], [], True, True, 0
        for _ in range(repeats):
            for engine in (self._first, self._second):
                engine.admit("s", tokens + 1 + GOES_ON)
            began = time.perf_counter()
            logits = self._compute(prompt)
            prefill.append(time.perf_counter() - began)
            size = self._export(prompt, keys)
            began = time.perf_counter()
            again = self._restore(prompt, keys)
            restore.append(time.perf_counter() - began)
            kv = (_exported(engine, 0, prompt[:tokens]) for engine in (self._first, self._second))
            equal &= torch.equal(logits, again) and torch.equal(*kv)
            same &= _greedy(self._first, logits) == _greedy(self._second, again)
            for engine in (self._first, self._second):
                engine.release("s")
        return Row(tokens, size / 2**20, prefill, restore, equal, same)

    def _compute(self, prompt: Sequence[int]) -> torch.Tensor:
        last = len(prompt) - 1
        for start in range(0, last, PIECE):
            self._first.forward([Chunk("s", prompt[start : min(start + PIECE, last)], 0)])
        return self._first.forward([Chunk("s", prompt[last:], 1)])

    def _export(self, prompt: Sequence[int], keys: dict[int, bytes]) -> int:
        """Store every block, and return their number of bytes."""
        size = 0
        for end, key in keys.items():
            value = frame(self._first.kv_layout, key, _exported(self._first, end - BLOCK_TOKENS, prompt[:end]))
            self._store.set(key, value)
            size += len(value)
        return size

    def _restore(self, prompt: Sequence[int], keys: dict[int, bytes]) -> torch.Tensor:
        for end, key in keys.items():
            value: Any = self._store.get(key)
            kv = unframe(self._second.kv_layout, key, BLOCK_TOKENS, bytearray(value or b""))
            if isinstance(kv, Flaw):
                raise ValueError(f"the block up to {end} is {kv}")
            self._second.restore("s", end - BLOCK_TOKENS, prompt[end - BLOCK_TOKENS : end], kv)
        return self._second.forward([Chunk("s", prompt[-1:], 1)])


def _exported(engine: NativeEngine, start: int, tokens: Sequence[int]) -> torch.Tensor:
    kv = engine.export_known(start, tokens)
    if kv is None:
        raise ValueError(f"the engine does not hold the {len(tokens)} tokens that it computed")
    return kv


def _greedy(engine: NativeEngine, logits: torch.Tensor) -> list[int]:
    said: list[int] = []
    while len(said) < GOES_ON:
        said.append(int(logits[-1].argmax()))
        logits = engine.forward([Chunk("s", said[-1:], 1)])
    return said


def report(rows: Sequence[Row]) -> Report:
    """Return the report."""
    figures = [Figure(f"computing / restoring {row.tokens} tokens", str(row.faster)) for row in rows]
    right = sum(row.equal and row.same for row in rows)
    judged = "yes" if right == len(rows) else "no"
    figures.append(Figure("keys, values, logits and greedy tokens identical", f"{right} of {len(rows)}", "all", judged))
    cells = [
        (row.tokens, f"{row.mib:.1f}", spread(row.prefill), spread(row.restore), _word(row.equal), _word(row.same))
        for row in rows
    ]
    head = ("tokens", "MiB", "computed, s", "restored, s", "equal to the bit", "same tokens after")
    return Report("kv", _TEXT, figures, [Table(head, [[str(cell) for cell in row] for row in cells])])


def _word(holds: bool) -> str:
    return "yes" if holds else "no"


@contextmanager
def roomy(folder: Path) -> Iterator[Path]:
    """Yield the model with a longer context. Rotary positions need no weights, and the output does not matter here."""
    with tempfile.TemporaryDirectory(prefix="specdec-") as name:
        made = Path(shutil.copytree(folder, Path(name) / "model"))
        config = json.loads((made / "config.json").read_text(encoding="utf-8"))
        (made / "config.json").write_text(json.dumps(config | {"max_position_embeddings": POSITIONS}))
        yield made


def measure(folder: Path, options: argparse.Namespace) -> list[Row]:
    """Return a row for each length that fits into the model's context."""
    load = {"dtype": options.dtype, "device": options.device, "kv_bytes": 2**31, "threads": options.threads}
    first, second = NativeEngine.load(folder, **load), NativeEngine.load(folder, **load)
    lengths = [tokens for tokens in options.tokens if tokens + GOES_ON < first.context_length]
    with servers() as (started, _, _), redis.Redis.from_url(started.kv) as store:
        return [Bench(first, second, store).row(tokens, options.repeats) for tokens in lengths]


def main() -> None:
    """Measure, show, and write the section."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help=f"a model's; the demo target with {POSITIONS} positions")
    parser.add_argument("--tokens", type=int, nargs="*", default=[512, 1024, 2048, 4096], help="multiples of 256")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=1)
    add_out(parser)
    options, load = parser.parse_args(), machine.load()
    if options.folder:
        rows = measure(options.folder, options)
    else:
        with roomy(_DEMO) as made:
            rows = measure(made, options)
    publish(report(rows), "python -m benchmarks.kv", options.out, load=load)


if __name__ == "__main__":
    main()
