"""A target connected as if in another process, which here is a thread of this process."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from pathlib import Path
from threading import Thread
from typing import Any, cast

from specdec.serving.settings import ModelSettings
from tests.unit.verifier_service.verifier_fakes import TableEngine, make_row
from verifier_service.backends.batch_plan import Row
from verifier_service.backends.model_step import ModelStep
from verifier_service.backends.model_thread import ModelThread
from verifier_service.config import VerifierSettings
from verifier_service.vllm.child import serve
from verifier_service.vllm.remote import RemoteModel
from verifier_service.vllm.shared_flags import SharedFlags, shared_memory

SETTINGS = VerifierSettings(model=ModelSettings(path=Path("model")))


class SeenModel(ModelThread):
    """Records its rows, with their tokens at the time of the call."""

    def __init__(self, engine: TableEngine) -> None:
        super().__init__(engine, SETTINGS)
        self.seen: list[list[Row]] = []

    def step(self, ended: Sequence[str], rows: Sequence[Row]) -> ModelStep:
        self.seen.append([replace(row, tokens=tuple(row.tokens)) for row in rows])
        return super().step(ended, rows)


@dataclass
class Pair:
    """The model as the verifier sees it, and the thread that runs it."""

    remote: RemoteModel
    model: SeenModel
    engine: TableEngine
    passes: list[tuple[ModelStep, Sequence[Row]]]

    def run(self, *rows: Row, ended: Sequence[str] = ()) -> ModelStep:
        return self.remote.run(ended, rows, lambda *seen: self.passes.append(cast("Any", seen)))

    def admit(self, *names: str) -> None:
        self.run(*(make_row(name, (3,), 0) for name in names))


@contextmanager
def served() -> Iterator[Pair]:
    ours, theirs = Pipe()
    memory, engine = shared_memory(), TableEngine()
    model = SeenModel(engine)
    thread = Thread(target=serve, args=(theirs, model, SharedFlags(memory)))
    thread.start()
    process = cast("subprocess.Popen[bytes]", None)
    yield Pair(RemoteModel(process, ours, SharedFlags(memory), 100), model, engine, [])
    ours.close()
    thread.join()
    os.close(memory)
