"""Proposals of beams, computed one after another, in steps between those of sessions."""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

import structlog

from drafter_service.metrics import DrafterMetrics
from drafter_service.sessions.drafter import BeamPasses
from specdec.wire.beams import ProposedBeam

Answer = Future[Sequence[ProposedBeam]]

_log = structlog.get_logger()


class BeamQueue:
    """The proposals that verifiers wait for. All methods run on the worker's thread.

    One proposal at a time has memory. A proposal that no verifier waits for is dropped."""

    def __init__(self, metrics: DrafterMetrics) -> None:
        self._metrics = metrics
        self._waiting: deque[tuple[BeamPasses, Answer]] = deque()

    def add(self, passes: BeamPasses, answer: Answer) -> None:
        """Queue a proposal, whose future is done after its last pass, unless it is cancelled before."""
        self._waiting.append((passes, answer))

    def step(self) -> bool:
        """Run one pass for the first proposal. Return False if there is none."""
        while self._waiting and self._waiting[0][1].cancelled():
            self._waiting.popleft()[0].close()
        if not self._waiting:
            return False
        passes, answer = self._waiting[0]
        try:
            next(passes)
        except StopIteration as done:
            beams: Sequence[ProposedBeam] = done.value
            self._metrics.beams.inc(len(beams))
            self._waiting.popleft()
            settle(answer, partial(answer.set_result, beams))
        except Exception as error:  # noqa: BLE001 - the thread must survive any failure of a pass
            _log.error("beam_pass_failed", exc_info=error)
            self._waiting.popleft()
            settle(answer, partial(answer.set_exception, error))
        return True


def settle(answer: Answer, tell: Callable[[], None]) -> None:
    """Set the result of a future with `tell`, unless the future is cancelled."""
    if answer.set_running_or_notify_cancel():
        tell()
