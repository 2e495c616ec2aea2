"""Worker's side of a `WorkerProcess`: reads questions from standard input and writes answers to standard output.

Each question is answered in a fork of the worker. The end of a fork that is late or crashes delays no other question.
"""

import os
import resource
import select
import signal
import struct
import sys
import time
from collections.abc import Callable

HEADER = struct.Struct("<iI")
"""Exit status of the fork that answered, and length of the following answer, in bytes."""
LATE = -signal.SIGPROF
"""Exit status of a fork that took too long."""
QUESTION = struct.Struct("<Id")
"""Length of the following question, in bytes, and the most processor time of its answer, in seconds."""
PATIENCE = 4
"""Real time of an answer on a busy machine, as a multiple of its processor time."""
READY = b"ready"
"""First message of a worker, sent after its imports."""
_NICE = 5
"""Increment of a worker's nice value over the services, so that hostile work slows no token."""


def serve(answer: Callable[[bytes], bytes], memory: int, stack: int | None = None) -> None:
    """Answer questions until the input ends; an answer that failed or took too long is empty.

    Args:
        answer: function from a question to its answer, which is not empty.
        memory: limit of the address space, in bytes.
        stack: limit of the main thread's stack, in bytes; None leaves the limit unchanged.
    """
    resource.setrlimit(resource.RLIMIT_AS, (memory, resource.getrlimit(resource.RLIMIT_AS)[1]))
    if stack is not None:
        resource.setrlimit(resource.RLIMIT_STACK, (stack, resource.getrlimit(resource.RLIMIT_STACK)[1]))
    os.nice(_NICE)
    _write(0, READY)
    while head := sys.stdin.buffer.read(QUESTION.size):
        size, seconds = QUESTION.unpack(head)
        _write(*_forked(answer, sys.stdin.buffer.read(size), seconds))


def _forked(answer: Callable[[bytes], bytes], question: bytes, seconds: float) -> tuple[int, bytes]:
    """Return the exit status of a fork, negative for a signal, and its answer."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.setitimer(signal.ITIMER_PROF, seconds)  # its signal ends the process
            with os.fdopen(writing, "wb") as out:
                out.write(answer(question))
            os._exit(0)
        finally:
            os._exit(1)
    os.close(writing)
    found, end = bytearray(), time.monotonic() + PATIENCE * seconds
    while select.select([reading], [], [], max(0.0, end - time.monotonic()))[0]:
        if not (piece := os.read(reading, 2**16)):
            break
        found += piece
    else:
        os.kill(child, signal.SIGPROF)
    os.close(reading)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status, b"" if status else bytes(found)


def _write(status: int, message: bytes) -> None:
    sys.stdout.buffer.write(HEADER.pack(status, len(message)) + message)
    sys.stdout.buffer.flush()
