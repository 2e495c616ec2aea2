"""Drafting for verifiers of different vocabularies with one model: a runner for each vocabulary, and steps in turn."""

from collections.abc import Iterable

from drafter_service.config import DrafterSettings
from drafter_service.metrics import DrafterMetrics
from drafter_service.sessions.draft_runner import DraftRunner
from drafter_service.sessions.drafter import Drafter, DrafterInfo, TranslatableDrafter
from drafter_service.sessions.stream import Message, Stream
from specdec.errors import TokenizerMismatch
from specdec.sampling.vocabulary import Vocabulary
from specdec.wire.session import Load

_MOST = 8
"""Vocabularies that a drafter translates for, beside its own, as long as it runs."""
_OWN = ""


class DraftRunners:
    """The runner of the drafter's own vocabulary, and those of others that verifiers have brought.

    A runner frees its own sessions' memory only.
    """

    def __init__(self, drafter: Drafter, settings: DrafterSettings, metrics: DrafterMetrics) -> None:
        self._drafter = drafter
        self._settings = settings
        self._metrics = metrics
        self._runners = {_OWN: DraftRunner(drafter, settings, metrics)}
        self._infos: dict[str, DrafterInfo] = {}

    @property
    def load(self) -> Load:
        """How busy the drafter is; a step is the slowest of any vocabulary's."""
        loads = [runner.load for runner in self._runners.values()]
        return Load(sum(load.sessions for load in loads), max(load.step_seconds for load in loads))

    def translate(self, target: Vocabulary) -> DrafterInfo:
        """Have a runner for sessions in another vocabulary.

        Raises:
            TokenizerMismatch: it cannot be translated, or translates for as many vocabularies as may be.
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

    def take(self, stream: Stream, messages: Iterable[Message]) -> None:
        """Do what the messages of one frame say."""
        self._runners[stream.vocabulary].take(stream, messages)

    def end_stream(self, stream: Stream) -> None:
        """Remove a stream's sessions, and send it nothing more."""
        self._runners[stream.vocabulary].end_stream(stream)

    def step(self) -> bool:
        """Run one pass for each vocabulary whose sessions want drafts; returns False when there are none."""
        stepped = [runner.step() for runner in self._runners.values()]
        return any(stepped)

    def send(self) -> None:
        """Send every stream its replies, and set the gauges."""
        self._metrics.sessions.set(self.load.sessions)
        for runner in self._runners.values():
            runner.send()
