"""The target on vLLM in a process of its own, as the verifier sees it.

vLLM's passes want Python's interpreter all the time. In the verifier's process they would wait for its event loop, and
it for them.
"""

import asyncio
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from threading import Lock
from typing import Any

import structlog

from specdec.engine.loader import ModelFacts
from specdec.errors import ModelRefused
from specdec.wire.generation import call_to_pb
from verifier_service.backends.batch_plan import Row
from verifier_service.backends.changes import Changes
from verifier_service.backends.model_step import ModelStep, Passed, TargetLost
from verifier_service.backends.run_ahead import following
from verifier_service.config import VerifierSettings
from verifier_service.vllm.messages import Order, Report, SentRow, WrittenMasks, sent_draft
from verifier_service.vllm.shared_told import SharedTold, shared_memory

_LOOK_SECONDS = 1.0
"""Time between two looks at whether the process lives."""

_log = structlog.get_logger()


class RemoteModel:
    """A `BatchModel` in another process: an order of rows goes there, and the steps over them come back."""

    drafts_first = False

    def __init__(
        self, process: "subprocess.Popen[bytes]", connection: "Connection[Any, Any]", told: SharedTold, most_tokens: int
    ) -> None:
        """Make a model that a process has loaded.

        Args:
            connection: to that process, which ends when this is closed.
            told: shared with it.
            most_tokens: tokens that fit into its empty engine.
        """
        self.told = told
        self._process = process
        self._connection = connection
        self._most_tokens = most_tokens
        self._sent: dict[str, int] = {}
        """How many tokens of each sequence were sent, by KV name."""
        self._joining: dict[str, Row] = {}
        """Rows that were sent and that no step has taken yet, by KV name."""
        self._over: set[str] = set()
        """KV names of the sequences that have ended since the last order; the next one may still hold rows of them."""
        self._sending = Lock()
        """The event loop sends as well."""

    def can_ever_admit(self, limit: int) -> bool:
        """Whether a sequence that may reach `limit` tokens fits into an empty engine."""
        return limit <= self._most_tokens

    async def watch(self) -> None:
        """Look at the process from time to time; as `BatchModel`."""
        while self._process.poll() is None:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(_LOOK_SECONDS)
        raise TargetLost(f"the process of vllm ended with {self._process.returncode}")

    def run(self, ended: Sequence[str], rows: Sequence[Row], passed: Passed) -> ModelStep:
        """Have a step done, and all that follow; as `BatchModel`."""
        try:
            rows = self._send(ended, rows)
            while (report := self._report()).changes is not None:
                step = report.step({row.kv_name: row for row in rows})
                over, joining = report.changes
                rows = following(step, rows, Changes(over, [self._joining.pop(name) for name in joining]))
                passed(step, rows)
            return report.step({row.kv_name: row for row in rows})
        except Exception as error:
            raise TargetLost("the process of vllm was lost") from error

    def join(self, ended: Sequence[str], rows: Sequence[Row]) -> None:
        """Have the next pass take changes; as `BatchModel`."""
        with suppress(OSError):  # whoever waits for a step learns that the process was lost
            self._send(ended, rows, joins=True)

    def _send(self, ended: Sequence[str], rows: Sequence[Row], *, joins: bool = False) -> Sequence[Row]:
        """Send changes or an order; the rows that were sent, without those of sequences that have ended."""
        with self._sending:
            for kv_name in ended:
                self._sent.pop(kv_name, None)
                self.told.free(kv_name)
            own = {row.kv_name: row for row in rows if joins or row.kv_name not in self._over}
            if joins:
                self._joining |= own
                self._over.update(ended)
            else:  # what is sent now takes the place of what waits, and who has ended waits no more
                self._over.clear()
                left = self._sent.keys() - own.keys()
                self._joining = {name: row for name, row in self._joining.items() if name in left}
            sent = list(own.values())
            self._connection.send_bytes(pickle.dumps(Order(ended, [self._sent_row(row) for row in sent], joins)))
            return sent

    def _report(self) -> Report:
        report: Report = pickle.loads(self._connection.recv_bytes())
        return report

    def _sent_row(self, row: Row) -> SentRow:
        start = self._sent.get(row.kv_name, 0)
        self._sent[row.kv_name] = len(row.tokens)
        return SentRow(
            row.kv_name,
            self.told.place(row.kv_name),
            None if start else call_to_pb(row.call),
            row.rank,
            row.limit,
            start,
            tuple(row.tokens[start:]),
            row.goal,
            sent_draft(row.draft),  # type: ignore[arg-type] # trees are refused before
            _masks(row),
            row.runs_ahead,
            row.unasked,
        )


def _masks(row: Row) -> WrittenMasks | None:
    """The masks of the row's grammar; a grammar that fails does so in the judgement of its own row."""
    if row.grammar is None or row.goal < len(row.tokens):
        return None
    try:
        return WrittenMasks(row.grammar.masks(row.tokens[row.call.prompt_len :], row.draft.tokens))
    except Exception as error:  # noqa: BLE001 - the other rows live on
        _log.error("grammar_failed", session=row.kv_name, exc_info=error)
        return WrittenMasks(None)


def open_target(settings: VerifierSettings) -> tuple[ModelFacts, RemoteModel]:
    """Load the target in a process of its own.

    Raises:
        ConfigError: as `target.load_target`.
    """
    ours, theirs = Pipe()
    memory = shared_memory()
    safe = ["-P"] if sys.flags.safe_path else []
    command = [sys.executable, *safe, "-m", "verifier_service.vllm.child", str(theirs.fileno()), str(memory)]
    process = subprocess.Popen(command, pass_fds=(theirs.fileno(), memory))
    theirs.close()
    told = SharedTold(memory)
    os.close(memory)
    try:
        ours.send_bytes(pickle.dumps(settings.__dict__))
        answer = pickle.loads(ours.recv_bytes())
    except (EOFError, OSError) as error:
        raise ModelRefused(f"{settings.model.path}: the process of vllm ended with {process.wait()}") from error
    if isinstance(answer, Exception):
        process.wait()
        raise answer
    _leave_a_processor()
    facts, most_tokens = answer
    return facts, RemoteModel(process, ours, told, most_tokens)


def _leave_a_processor() -> None:
    """Leave the first of several processors to the process of the target.

    The short pieces of work of the verifier would come between the long ones of its target.
    """
    if sys.platform == "linux" and len(cores := sorted(os.sched_getaffinity(0))) > 1:
        for thread in os.listdir("/proc/self/task"):
            with suppress(ProcessLookupError):  # it has ended
                os.sched_setaffinity(int(thread), cores[1:])
