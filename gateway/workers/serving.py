"""Worker's side of a `WorkerProcess`: reads questions from standard input and writes answers to standard output."""

import os
import resource
import struct
import sys
from collections.abc import Callable

HEADER = struct.Struct("<I")
"""Length of the following message, in bytes."""
READY = b"ready"
"""First message of a worker, sent after its imports."""
_NICE = 5
"""Increment of a worker's nice value over the services, so that hostile work slows no token."""


def serve(answer: Callable[[bytes], bytes], memory: int, stack: int | None = None) -> None:
    """Answer questions until the input ends.

    Args:
        answer: function from a question to its answer.
        memory: limit of the address space, in bytes.
        stack: limit of the main thread's stack, in bytes; None leaves the limit unchanged.
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
