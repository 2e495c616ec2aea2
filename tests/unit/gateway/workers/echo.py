"""A worker that echoes its requests, sleeps, computes, or dies; `once PATH` dies if it has not made the file yet."""

import os
import signal
import time
from pathlib import Path

from gateway.workers.serving import serve


def answer(question: bytes) -> bytes:
    if question == b"sleep":
        time.sleep(60)
    if question == b"die":
        os._exit(1)
    if question.startswith(b"once "):
        made = Path(os.fsdecode(question.split()[1]))
        if not made.exists():
            made.touch()
            os.kill(os.getppid() if b"worker" in question else os.getpid(), signal.SIGKILL)
    if question == b"wait":
        time.sleep(0.4)
    while question == b"compute":
        pass
    return question


if __name__ == "__main__":
    serve(answer, 2**30)
