"""A worker that echoes its requests, sleeps, or dies."""

import os
import time

from gateway.workers.serving import serve


def answer(question: bytes) -> bytes:
    if question == b"sleep":
        time.sleep(60)
    if question == b"die":
        os._exit(1)
    return question


if __name__ == "__main__":
    serve(answer, 2**30)
