"""Process of a target on vLLM: `python -m verifier_service.vllm.child CONNECTION BLOCKS MEMORY`.

The arguments are file descriptors inherited from the verifier. The process ends when the verifier ends.
"""

import os
import pickle
import select
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any, cast

from typing_extensions import override

from specdec.errors import ConfigError
from specdec.grammar.state import TokenMasks
from specdec.serving.telemetry.logs import configure
from specdec.wire.generation import GenerationCall, call_from_pb
from verifier_service.backends.batch_plan import Row
from verifier_service.backends.model_step import Changes, ModelStep, PendingChanges
from verifier_service.backends.model_thread import SteppedModel
from verifier_service.config import VerifierSettings
from verifier_service.vllm.kv.port import KvPort
from verifier_service.vllm.messages import Order, Report, SentRow, draft_of
from verifier_service.vllm.shared_flags import SharedFlags
from verifier_service.vllm.target import load_target


class Sequences:
    """Calls and tokens received for each sequence, so that a row carries only new data."""

    def __init__(self, flags: SharedFlags) -> None:
        self._flags = flags
        self._known: dict[str, tuple[GenerationCall, list[int]]] = {}

    def rows(self, order: Order) -> list[Row]:
        """Rebuild the rows of an order, after dropping the sequences that have ended."""
        for kv_name in order.ended:
            self._flags.leave(kv_name)
            self._known.pop(kv_name, None)
        return [self._row(sent) for sent in order.rows]

    def _row(self, sent: SentRow) -> Row:
        if sent.call is not None:
            self._known[sent.kv_name] = call_from_pb(sent.call), []
            self._flags.put(sent.kv_name, sent.place)
        call, tokens = self._known[sent.kv_name]
        tokens[sent.start :] = sent.tokens
        draft, grammar = draft_of(sent.draft), cast("TokenMasks | None", sent.masks)
        return Row(
            call, sent.kv_name, sent.rank, sent.limit, tokens, sent.goal, draft, False, grammar,
            sent.runs_ahead, sent.prefetched, head=sent.head,
        )  # fmt: skip


class SentChanges(PendingChanges):
    """Changes and orders received from the verifier over one connection."""

    def __init__(self, connection: "Connection[Any, Any]", sequences: Sequences, idle: Callable[[], object]) -> None:
        super().__init__()
        self._connection = connection
        self._sequences = sequences
        self._idle = idle
        self.last = Changes()
        """Changes returned by the last `take`."""

    def order(self) -> tuple[Sequence[str], Sequence[Row]]:
        """Wait for the next order; return ended sequences and rows. Raises EOFError when the verifier has ended."""
        self._idle()
        while (order := self._received()).joins:
            self.add(order.ended, self._sequences.rows(order))
            self._idle()
        return order.ended, self._sequences.rows(order)

    @override
    def take(self) -> Changes:
        while self._connection.poll():
            joining = self._received()
            self.add(joining.ended, self._sequences.rows(joining))
        self.last = super().take()
        return self.last

    def _received(self) -> Order:
        order: Order = pickle.loads(self._connection.recv_bytes())
        return order


def serve(
    connection: "Connection[Any, Any]",
    model: SteppedModel,
    flags: SharedFlags,
    idle: Callable[[], object] = lambda: None,
) -> None:
    """Run the ordered steps until the verifier ends. `idle` is called before each wait for an order."""
    changes = SentChanges(connection, Sequences(flags), idle)
    model.flags, model.pending = flags, changes
    with suppress(EOFError):
        while True:
            ended, rows = changes.order()
            last = model.run(ended, rows, lambda step, _: _send(connection, step, changes.last))
            _send(connection, last, None)


def _send(connection: "Connection[Any, Any]", step: ModelStep, changes: Changes | None) -> None:
    connection.send_bytes(pickle.dumps(Report.of(step, changes)))


def main(connection: "Connection[Any, Any]", questions: "Connection[Any, Any]", flags: SharedFlags) -> None:
    """Load the target, report the result, and serve."""
    Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    for number in (signal.SIGINT, signal.SIGTERM):  # a terminal signals this process too, but the verifier drains first
        signal.signal(number, signal.SIG_IGN)
    settings = VerifierSettings.model_construct(**pickle.loads(connection.recv_bytes()))
    configure("verifier", settings.log)
    try:
        facts, model, shared = load_target(settings)
    except ConfigError as error:
        return connection.send_bytes(pickle.dumps(error))
    if shared is None or model.blocks is None:
        connection.send_bytes(pickle.dumps((facts, model.most_tokens, model.head_step, None)))
        return serve(connection, model, flags)
    port = KvPort(questions, model.blocks.ask)
    model.blocks.open(shared.fingerprint, port.answer)
    connection.send_bytes(pickle.dumps((facts, model.most_tokens, model.head_step, shared)))
    return serve(connection, model, flags, partial(port.await_order, connection, model.copy_blocks))


def _end_with(parent: int) -> None:
    """Exit this process at once when its parent ends."""
    select.select([os.pidfd_open(parent)], [], [])
    os._exit(1)


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])), Connection(int(sys.argv[2])), SharedFlags(int(sys.argv[3])))
