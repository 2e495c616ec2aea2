"""Connection by which the verifier asks the process of its target for blocks of KV. Both of its ends are here."""

import os
import pickle
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from itertools import count
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

from specdec.errors import InternalError
from verifier_service.vllm.kv.messages import KvAnswer, Question

_COPY_SECONDS = 0.001
"""Seconds between two looks at copies while there is no order."""


class KvAsker:
    """The verifier's end. A thread receives the answers."""

    def __init__(self, connection: "Connection[Any, Any]") -> None:
        self._connection = connection
        self._numbers = count()
        self._waiting: dict[int, Future[KvAnswer]] = {}
        self._sending = Lock()
        self._lost = False
        Thread(target=self._receive, name="kv answers", daemon=True).start()

    def ask(self, question: Callable[[int], Question]) -> Future[KvAnswer]:
        """Send a question with its number. It may take as long as a step; the answer is InternalError if none comes."""
        number, answer = next(self._numbers), Future[KvAnswer]()
        answer.set_running_or_notify_cancel()  # from here on, a caller that leaves cannot cancel it
        self._waiting[number] = answer
        try:
            with self._sending:
                self._connection.send_bytes(pickle.dumps(question(number), protocol=5))
        except OSError:
            self._lost = True
        if self._lost:
            self._fail()
        return answer

    def _receive(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                answer: KvAnswer = pickle.loads(self._connection.recv_bytes())
                self._waiting.pop(answer.number).set_result(answer)
        self._lost = True
        self._fail()

    def _fail(self) -> None:
        for number in list(self._waiting):
            if (answer := self._waiting.pop(number, None)) is not None:
                answer.set_exception(InternalError("the process of vllm was lost"))


class KvPort:
    """The target's end. Two threads receive and send, so that no step waits for the connection."""

    def __init__(self, connection: "Connection[Any, Any]", ask: Callable[[Question], None]) -> None:
        """Create a port; `ask` is called with each question on a thread of the port."""
        self._connection = connection
        self._ask = ask
        self._answers: SimpleQueue[KvAnswer] = SimpleQueue()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK)
        for work in (self._receive, self._send):
            Thread(target=work, name="kv", daemon=True).start()

    def answer(self, answer: KvAnswer) -> None:
        """Send an answer after those before it."""
        self._answers.put(answer)

    def await_order(self, orders: "Connection[Any, Any]", copy: Callable[[], bool]) -> None:
        """Wait for a message on `orders`. While questions come, call `copy`, which returns whether to call it again."""
        seconds: float | None = None
        while orders not in wait([orders, self._wake], seconds):
            with suppress(BlockingIOError):
                os.eventfd_read(self._wake)
            seconds = _COPY_SECONDS if copy() else None

    def _receive(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                self._ask(pickle.loads(self._connection.recv_bytes()))
                os.eventfd_write(self._wake, 1)

    def _send(self) -> None:
        with suppress(OSError):
            while True:
                self._connection.send_bytes(pickle.dumps(self._answers.get(), protocol=5))
