"""The worker's end of a `WorkerProcess`: questions are read from the standard input, answers leave by the output."""

import os
import resource
import struct
import sys
from collections.abc import Callable

HEADER = struct.Struct("<I")
"""Length of what follows, in bytes."""
READY = b"ready"
"""First message of a worker: it has imported what it needs."""
_NICE = 5
"""Steps of priority by which a worker is behind the services, so that hostile work slows no token."""


def serve(answer: Callable[[bytes], bytes], memory: int, stack: int | None = None) -> None:
    """Answer questions until the input ends.

    Args:
        memory: bytes of address space the process may have.
        stack: bytes of stack of its main thread; None leaves the limit as it is.
    """
    resource.setrlimit(resource.RLIMIT_AS, (memory, resource.getrlimit(resource.RLIMIT_AS)[1]))
    if stack is not None:
        resource.setrlimit(resource.RLIMIT_STACK, (stack, resource.getrlimit(resource.RLIMIT_STACK)[1]))
    os.nice(_NICE)
    _write(READY)
    while head := sys.stdin.buffer.read(HEADER.size):
        _write(answer(sys.stdin.buffer.read(*HEADER.unpack(head))))


def _write(message: bytes) -> None:
    sys.stdout.buffer.write(HEADER.pack(len(message)) + message)
    sys.stdout.buffer.flush()
