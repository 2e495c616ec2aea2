"""A worker in its own process: one JSON value a line in, one out."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from benchmarks.machine import ROOT, resident_bytes
from specdec.errors import InternalError


class LineProcess:
    """The worker process, as a context manager. It is ready inside the context and ends with it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Set the command, which writes a line once it is ready. It runs on this process's cores."""
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Self:
        self._line()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def resident_bytes(self) -> int:
        """Resident memory of the worker, in bytes."""
        return resident_bytes(self._process.pid)

    def ask(self, value: object) -> Any:
        """Send a value and return the worker's answer."""
        if self._process.stdin is None:
            raise InternalError("the worker has no input")
        self._process.stdin.write(json.dumps(value) + "\n")
        self._process.stdin.flush()
        return json.loads(self._line())

    def _line(self) -> str:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise InternalError("a benchmark worker ended; its error is above")
        return line
