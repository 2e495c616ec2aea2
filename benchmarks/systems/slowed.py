"""A service with a slowed model: `python -m benchmarks.systems.slowed verifier 0.06 0 '' --config F`.

The arguments are the seconds of a pass and of each token that it computes. If the machine needs less time, the process
sleeps for the rest, so that the processor is free for others as with a GPU. Services that name the same file share a
device, which runs one pass at a time. A drafter may also have a fault:
`python -m benchmarks.systems.slowed lying 0.004 0 '' --config F`.
"""

import fcntl
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from torch import Tensor

from benchmarks.systems import faulty
from benchmarks.systems.apart import StepTime
from drafter_service.__main__ import main as drafter
from specdec.engine import Chunk, NativeEngine
from verifier_service.__main__ import main as verifier

_FORWARD = NativeEngine.forward
_MAIN: dict[str, Callable[[Sequence[str]], int]] = {
    "verifier": verifier,
    "drafter": drafter,
    "slow": lambda arguments: faulty.serve("slow", arguments),
    "lying": lambda arguments: faulty.serve("lying", arguments),
}


@contextmanager
def slowed(step: Callable[[NativeEngine], StepTime]) -> Iterator[None]:
    """Give a pass of each engine of this process the specified time."""

    def forward(engine: NativeEngine, chunks: Sequence[Chunk]) -> Tensor:
        time_of = step(engine)
        with device_held(time_of.device):
            started = time.perf_counter()
            logits = _FORWARD(engine, chunks)
            least = time_of.seconds(sum(len(chunk.tokens) for chunk in chunks))
            time.sleep(max(0.0, started + least - time.perf_counter()))
        return logits

    with mock.patch.object(NativeEngine, "forward", forward):
        yield


@contextmanager
def device_held(device: str) -> Iterator[None]:
    """Hold the device for the block, exclusively among all processes. An empty name is not a shared device."""
    if not device:
        yield
        return
    with Path(device).open("a", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    _, role, base, token, device, *rest = sys.argv
    with slowed(lambda _: StepTime(float(base), float(token), device=device)):
        sys.exit(_MAIN[role](rest))
