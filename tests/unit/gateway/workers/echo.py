"""A worker that echoes its requests, sleeps, computes, or dies."""

import os
import time

from gateway.workers.serving import serve


def answer(question: bytes) -> bytes:
    if question == b"sleep":
        time.sleep(60)
    if question == b"die":
        os._exit(1)
    if question == b"wait":
        time.sleep(0.4)
    while question == b"compute":
        pass
    return question


if __name__ == "__main__":
    serve(answer, 2**30)
