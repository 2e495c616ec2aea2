"""`python -m benchmarks.kv FOLDER`: restoring keys and values from Redis against computing them again.

One engine computes a prompt, exports its blocks and puts them into a server started for it; another takes them from
there, checked. Both times end with the logits behind the prompt, which are compared. What stands between the processes
of a real system, gRPC, is left out.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
import torch

from benchmarks import machine
from benchmarks.pages import add_out, publish
from benchmarks.results import Figure, Report, Table
from benchmarks.sessions import servers
from specdec import blocks
from specdec.engine import Chunk, Engine
from specdec.engine.kv_frame import Flaw, frame, unframe

_TEXT = """\
Seconds to the logits behind a prompt: computed by one engine, and restored by another from the blocks that the first
has put into Redis, checked. What stands between the processes of a real system, gRPC, is left out."""
BLOCK_TOKENS = 256
PIECE = 512
"""Prompt tokens in one pass."""


@dataclass(frozen=True, slots=True)
class Row:
    """One length; seconds to the logits behind the prompt."""

    tokens: int
    mib: float
    """Of the blocks."""
    prefill: float
    restore: float
    identical: bool
    """Whether keys, values and logits are, to the bit."""


def measure(engines: tuple[Engine, Engine], store: redis.Redis, tokens: int) -> Row:
    """Compute with the one, restore with the other."""
    first, second = engines
    prompt = [(7 + 31 * i * i) % first.vocab_size for i in range(tokens + 1)]
    for engine in engines:
        engine.admit("s", tokens + 1)
    began = time.perf_counter()
    for start in range(0, tokens, PIECE):
        first.forward([Chunk("s", prompt[start : min(start + PIECE, tokens)], 0)])
    logits = first.forward([Chunk("s", prompt[tokens:], 1)])
    prefill = time.perf_counter() - began
    hashes = blocks.chain(blocks.root(first.fingerprint), prompt[:tokens])
    ends = range(BLOCK_TOKENS, tokens + 1, BLOCK_TOKENS)
    keys = {end: hashes[end // blocks.BLOCK_TOKENS - 1] for end in ends}
    size = 0
    for end, key in keys.items():
        value = frame(first.kv_layout, key, first.export("s", end - BLOCK_TOKENS, end))
        store.set(key, value)
        size += len(value)
    began = time.perf_counter()
    for end, key in keys.items():
        kv = unframe(second.kv_layout, key, BLOCK_TOKENS, bytearray(_stored(store, key)))
        if isinstance(kv, Flaw):
            raise ValueError(f"the block up to {end} is {kv}")
        second.restore("s", end - BLOCK_TOKENS, prompt[end - BLOCK_TOKENS : end], kv)
    again = second.forward([Chunk("s", prompt[tokens:], 1)])
    restore = time.perf_counter() - began
    same = torch.equal(logits, again) and torch.equal(first.export("s", 0, tokens), second.export("s", 0, tokens))
    for engine in engines:
        engine.release("s")
    return Row(tokens, size / 2**20, prefill, restore, same)


def _stored(store: redis.Redis, key: bytes) -> bytes:
    value: Any = store.get(key)
    return bytes(value or b"")


def report(rows: Sequence[Row]) -> Report:
    """The times, and how much is saved."""
    cells = [
        (
            str(row.tokens),
            f"{row.mib:.1f}",
            f"{row.prefill:.3f}",
            f"{row.restore:.3f}",
            f"{row.prefill / row.restore:.1f}",
            "yes" if row.identical else "no",
        )
        for row in rows
    ]
    figures = [Figure(f"{row.tokens} tokens, times faster", f"{row.prefill / row.restore:.1f}") for row in rows]
    head = ("tokens", "MiB", "computed, s", "restored, s", "times faster", "identical")
    return Report("kv", _TEXT, figures, [Table(head, cells)])


def main() -> None:
    """Measure, show and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("folder", type=Path, help="the model's")
    parser.add_argument(
        "--tokens",
        type=int,
        nargs="*",
        default=[512, 1024, 2048, 4096],
        help="multiples of 256; those over the model's context are left out",
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=1)
    add_out(parser)
    options = parser.parse_args()
    before = machine.load()
    load = {"dtype": options.dtype, "device": options.device, "kv_bytes": 2**31, "threads": options.threads}
    engines = Engine.load(options.folder, **load), Engine.load(options.folder, **load)
    longest = engines[0].context_length
    with servers() as (started, _, _), redis.Redis.from_url(started.kv) as store:
        rows = [measure(engines, store, tokens) for tokens in options.tokens if tokens < longest]
    publish(report(rows), f"python -m benchmarks.kv {options.folder.name}", options.out, load=before)


if __name__ == "__main__":
    main()
