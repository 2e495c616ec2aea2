"""Client of the target on vLLM, which runs in a process of its own.

vLLM's passes keep Python's interpreter busy. In the verifier's process, they would compete with its event loop for the
interpreter lock.
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
from verifier_service.backends.model_step import Changes, ModelStep, Passed, TargetLost
from verifier_service.backends.model_thread import following
from verifier_service.config import VerifierSettings
from verifier_service.kv.blocks import KvMover
from verifier_service.vllm.kv.messages import SharedKv
from verifier_service.vllm.kv.mover import VllmBlocks
from verifier_service.vllm.kv.port import KvAsker
from verifier_service.vllm.messages import Order, Report, SentRow, WrittenMasks, sent_draft
from verifier_service.vllm.shared_flags import SharedFlags, shared_memory

_LOOK_SECONDS = 1.0
"""Seconds between two checks that the process is alive."""

_log = structlog.get_logger()


class RemoteModel:
    """A `BatchModel` in another process. It sends orders of rows and receives the steps over them."""

    drafts_first = False

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        connection: "Connection[Any, Any]",
        flags: SharedFlags,
        most_tokens: int,
        head_step: float | None = None,
    ) -> None:
        """Create the client of a process that has loaded its model.

        Args:
            process: process of the target.
            connection: connection to the process, which ends when it is closed.
            flags: flags shared with the process.
            most_tokens: number of tokens that fit the empty engine.
            head_step: duration of a step of the target's head, in seconds; None if it has none.
        """
        self.flags = flags
        self._process = process
        self._connection = connection
        self._most_tokens = most_tokens
        self.head_step = head_step
        self._sent: dict[str, int] = {}
        """Number of tokens sent for each sequence, by KV name."""
        self._joining: dict[str, Row] = {}
        """Rows sent that no step has taken, by KV name."""
        self._over: set[str] = set()
        """KV names of sequences that ended since the last order. The next order may still contain their rows."""
        self._sending = Lock()
        """Lock for sending, since the event loop sends as well."""

    def can_ever_admit(self, limit: int) -> bool:
        """Whether a sequence of up to `limit` tokens fits an empty engine."""
        return limit <= self._most_tokens

    async def watch(self) -> None:
        """Poll the process; see `BatchModel`."""
        while self._process.poll() is None:  # noqa: ASYNC110 - no event signals it
            await asyncio.sleep(_LOOK_SECONDS)
        raise TargetLost(f"the process of vllm ended with {self._process.returncode}")

    def run(self, ended: Sequence[str], rows: Sequence[Row], passed: Passed) -> ModelStep:
        """Run a step and the steps that run ahead after it; see `BatchModel`."""
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
        """Pass changes to the next pass; see `BatchModel`."""
        with suppress(OSError):  # `run` reports that the process was lost
            self._send(ended, rows, joins=True)

    def _send(self, ended: Sequence[str], rows: Sequence[Row], *, joins: bool = False) -> Sequence[Row]:
        """Send changes or an order; return the rows sent, without those of ended sequences."""
        with self._sending:
            for kv_name in ended:
                self._sent.pop(kv_name, None)
                self.flags.free(kv_name)
            own = {row.kv_name: row for row in rows if joins or row.kv_name not in self._over}
            if joins:
                self._joining |= own
                self._over.update(ended)
            else:  # an order replaces waiting rows and drops those of ended sequences
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
            self.flags.place(row.kv_name),
            None if start else call_to_pb(row.call),
            row.rank,
            row.limit,
            start,
            tuple(row.tokens[start:]),
            row.goal,
            sent_draft(row.draft),  # type: ignore[arg-type] # trees are refused before
            _masks(row),
            row.runs_ahead,
            row.prefetched,
            row.head,
        )


def _masks(row: Row) -> WrittenMasks | None:
    """Return the masks of the row's grammar. If they fail, only the verdict on this row fails."""
    if row.grammar is None or row.goal < len(row.tokens):
        return None
    try:
        return WrittenMasks(row.grammar.masks(row.tokens[row.call.prompt_len :], row.draft.tokens))
    except Exception as error:  # noqa: BLE001 - other rows go on
        _log.error("grammar_failed", session=row.kv_name, exc_info=error)
        return WrittenMasks(None)


def open_target(settings: VerifierSettings) -> tuple[ModelFacts, RemoteModel, KvMover]:
    """Load the target in a process of its own.

    Raises:
        ConfigError: see `target.load_target`.
    """
    (ours, theirs), (questions, answers) = Pipe(), Pipe()
    memory, numbers = shared_memory(), (theirs.fileno(), answers.fileno())
    safe = ["-P"] if sys.flags.safe_path else []
    command = [sys.executable, *safe, "-m", "verifier_service.vllm.child", *map(str, (*numbers, memory))]
    process = subprocess.Popen(command, pass_fds=(*numbers, memory))
    theirs.close()
    answers.close()
    flags = SharedFlags(memory)
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
    facts, most_tokens, head_step, shared = answer
    kv = _mover(shared, questions)
    return facts, RemoteModel(process, ours, flags, most_tokens, head_step), kv


def _mover(shared: SharedKv | None, questions: "Connection[Any, Any]") -> KvMover:
    if shared is None:
        _log.info("kv_not_exchanged", reason="the settings name another connector, or layers attend in a window")
        return KvMover()
    _log.info("kv_exchanged", among="vllm only, not native", kv_fingerprint=shared.fingerprint)
    return VllmBlocks(KvAsker(questions), shared)


def _leave_a_processor() -> None:
    """Reserve the first of several processors for the process of the target.

    Otherwise the verifier's short tasks would interrupt the target's long ones.
    """
    if sys.platform == "linux" and len(cores := sorted(os.sched_getaffinity(0))) > 1:
        for thread in os.listdir("/proc/self/task"):
            with suppress(ProcessLookupError):  # the thread has ended
                os.sched_setaffinity(int(thread), cores[1:])
