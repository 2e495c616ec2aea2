"""The thread that owns the drafter. It takes messages between steps, and runs steps while any session wants drafts."""

import contextvars
import queue
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from drafter_service.config import DrafterSettings
from drafter_service.metrics import DrafterMetrics
from drafter_service.sessions.beam_queue import Answer, BeamQueue, settle
from drafter_service.sessions.draft_runner import DraftRunner
from drafter_service.sessions.drafter import BeamProposer, Drafter, DrafterInfo, TranslatableDrafter
from drafter_service.sessions.stream import Message, Stream
from specdec.errors import FieldInvalid, TokenizerMismatch
from specdec.sampling.vocabulary import Vocabulary
from specdec.wire.beams import BeamAsk
from specdec.wire.session import Load

_MOST = 8
"""Maximum number of other vocabularies that a drafter translates to during its lifetime."""
_OWN = ""


class DraftRunners:
    """The runner for the drafter's own vocabulary, and one for each vocabulary that verifiers have sent.

    A runner frees only the memory of its own sessions.
    """

    def __init__(self, drafter: Drafter, settings: DrafterSettings, metrics: DrafterMetrics) -> None:
        self._drafter = drafter
        self._settings = settings
        self._metrics = metrics
        self._runners = {_OWN: DraftRunner(drafter, settings, metrics)}
        self._infos: dict[str, DrafterInfo] = {}
        self._beams = BeamQueue(metrics)

    @property
    def load(self) -> Load:
        """Total sessions, and the longest step time of any vocabulary."""
        loads = [runner.load for runner in self._runners.values()]
        return Load(sum(load.sessions for load in loads), max(load.step_seconds for load in loads))

    def translate(self, target: Vocabulary) -> DrafterInfo:
        """Create a runner for sessions in another vocabulary, unless one exists.

        Raises:
            TokenizerMismatch: the drafter cannot translate to it, or is at its limit of vocabularies.
        """
        digest = target.digest
        if digest not in self._runners:
            if len(self._infos) == _MOST:
                raise TokenizerMismatch(f"the drafter translates for {_MOST} other vocabularies already: restart it")
            if not isinstance(self._drafter, TranslatableDrafter):
                raise TokenizerMismatch(f"drafts of kind {self._drafter.info.kind} cannot be translated")
            drafter = self._drafter.translated(target)
            self._runners[digest] = DraftRunner(drafter, self._settings, self._metrics)
            self._infos[digest] = drafter.info
        return self._infos[digest]

    def beams(self, ask: BeamAsk, answer: Answer) -> None:
        """Propose beams in the next steps; none if the drafter proposes none or has another tokenizer.

        Raises:
            FieldInvalid: a token is outside the vocabulary.
        """
        info = self._drafter.info
        if not isinstance(self._drafter, BeamProposer) or ask.tokenizer_hash != info.tokenizer_hash:
            settle(answer, partial(answer.set_result, ()))
            return
        if (
            max(max(tokens, default=0) for tokens in (ask.prompt, *(tokens for tokens, _ in ask.beams)))
            >= info.vocab_size
        ):
            raise FieldInvalid(f"a token id is outside the vocabulary of {info.vocab_size}", "prompt")
        self._beams.add(self._drafter.beams(ask, self._settings.chunk_tokens), answer)

    def take(self, stream: Stream, messages: Iterable[Message]) -> None:
        """Apply the messages of one frame."""
        self._runners[stream.vocabulary].take(stream, messages)

    def end_stream(self, stream: Stream) -> None:
        """Remove a stream's sessions and its pending replies."""
        self._runners[stream.vocabulary].end_stream(stream)

    def step(self) -> bool:
        """Run one pass for each vocabulary whose sessions want drafts, and one for beams. Return False if none ran."""
        stepped = [runner.step() for runner in self._runners.values()]
        return any([*stepped, self._beams.step()])

    def send(self) -> None:
        """Send each stream its replies, and update the gauges."""
        self._metrics.sessions.set(self.load.sessions)
        for runner in self._runners.values():
            runner.send()


_Task = Callable[[DraftRunners], None]
_Answer = TypeVar("_Answer")


class Worker:
    """Runs the drafter's thread from `start` to `stop`. The other methods are thread-safe and return at once."""

    def __init__(self, load_drafter: Callable[[], Drafter], settings: DrafterSettings, metrics: DrafterMetrics) -> None:
        """Create the thread, which calls `load_drafter` after `start`."""
        self._load_drafter = load_drafter
        self._settings = settings
        self._metrics = metrics
        self._inbox: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        # The thread inherits the log fields bound in this process.
        run = partial(contextvars.copy_context().run, self._run)
        self._thread = threading.Thread(target=run, name="drafter", daemon=True)
        self.load = Load(0, 0.0)
        """Current load of the drafter."""
        self.loaded: Future[DrafterInfo] = Future()
        """Done when the drafter is loaded or has failed to load."""
        self.ended: Future[None] = Future()
        """Done when the thread has ended; holds the error that ended it, if any."""

    @property
    def outcomes(self) -> int:
        """Maximum number of outcomes per session to push chains for."""
        return self._settings.outcomes

    @property
    def alive(self) -> bool:
        return self.loaded.done() and not self.ended.done()

    def start(self) -> None:
        """Start the thread, which loads the drafter."""
        self._thread.start()

    def stop(self) -> None:
        """Stop after the current step."""
        self._inbox.put(None)

    def post(self, stream: Stream, messages: Iterable[Message]) -> None:
        """Queue the messages of one frame."""
        messages = tuple(messages)
        self._inbox.put(lambda runner: runner.take(stream, messages))

    def end_stream(self, stream: Stream) -> None:
        """Forget a stream and its sessions. Idempotent."""
        self._inbox.put(lambda runner: runner.end_stream(stream))

    def wake(self) -> None:
        """Plan a step again after a stream has room for more drafts."""
        self._inbox.put(lambda runner: None)

    def translate(self, target: Vocabulary) -> "Future[DrafterInfo]":
        """Prepare to serve verifiers with another vocabulary. The result is their DrafterInfo, or TokenizerMismatch."""
        return self._ask(lambda runner: runner.translate(target))

    def beams(self, ask: BeamAsk) -> Answer:
        """Propose the beams of a target's search, one pass at a time between other steps. It may be cancelled."""
        done: Answer = Future()

        def begin(runner: DraftRunners) -> None:
            try:
                runner.beams(ask, done)
            except FieldInvalid as error:
                settle(done, partial(done.set_exception, error))

        self._inbox.put(begin)
        return done

    def caught_up(self) -> "Future[None]":
        """Return a future that is done when all earlier messages have been taken. It may be cancelled."""
        return self._ask(lambda runner: None)

    def _ask(self, question: Callable[[DraftRunners], _Answer]) -> "Future[_Answer]":
        """Run a question on the worker's thread and return its answer as a future, unless it is cancelled first."""
        done: Future[_Answer] = Future()

        def answer(runner: DraftRunners) -> None:
            if not done.set_running_or_notify_cancel():
                return
            try:
                done.set_result(question(runner))
            except Exception as error:  # noqa: BLE001 - the future's reader raises it again
                done.set_exception(error)

        self._inbox.put(answer)
        return done

    def _run(self) -> None:
        try:
            drafter = self._load_drafter()
        except BaseException as error:  # noqa: BLE001 - it is raised again where the future is awaited
            self.loaded.set_exception(error)
            self.ended.set_result(None)
            return
        try:
            self._work(drafter)
        except BaseException as error:  # noqa: BLE001 - it is raised again where the future is awaited
            self.ended.set_exception(error)
        else:
            self.ended.set_result(None)

    def _work(self, drafter: Drafter) -> None:
        runner = DraftRunners(drafter, self._settings, self._metrics)
        self.load = runner.load
        self.loaded.set_result(drafter.info)
        busy = False
        while self._take_tasks(runner, wait=not busy):
            runner.send()
            busy = runner.step()
            runner.send()
            self.load = runner.load

    def _take_tasks(self, runner: DraftRunners, *, wait: bool) -> bool:
        """Run all waiting tasks; with `wait`, at least one. Return False when the worker must stop."""
        try:
            task = self._inbox.get(block=wait)
            while task is not None:
                task(runner)
                task = self._inbox.get_nowait()
        except queue.Empty:
            return True
        return False
