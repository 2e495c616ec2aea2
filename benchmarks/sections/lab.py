"""The peers and the system that sections measure, started on first use and shared by later sections."""

from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from benchmarks.peers.turns import Fixed, Process
from benchmarks.peers.worker import Spec
from benchmarks.run import Ask, Peer
from benchmarks.sections.scale import Scale
from benchmarks.systems.stack import Stack, running

HF, HF_DEFAULT, HF_FIVE = "HF", "HF assisted", "HF assisted, 5 constant"
TWO = "two threads"
_FIVE = 5


class Lab:
    """Context manager that ends everything it started."""

    def __init__(self, scale: Scale) -> None:
        self.scale = scale
        self._started = ExitStack()
        self._workers = dict[Spec, Process]()
        self._system: Stack | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._started.close()

    def asks(self) -> list[Ask]:
        """Return the default asks, which are greedy."""
        return self.scale.pair.asks(self.scale.asks, self.scale.prompt, self.scale.tokens)

    def engine(self, *, compiled: bool = True) -> Process:
        """Return our engine in its own process, target and drafter on one thread, compiled if the scale is."""
        pair, compiled = self.scale.pair, compiled and self.scale.compiled
        return self._worker(Spec("engine", str(pair.target), str(pair.drafter), compiled=compiled))

    def hugging_face(self, threads: int = 1) -> dict[str, Peer]:
        """Return the plain peer, the assisted peer at its defaults, and the assisted peer with five constant tokens."""
        worker = self._worker(Spec("hf", str(self.scale.pair.target), str(self.scale.pair.drafter), threads))
        gammas = {HF: 0, HF_DEFAULT: None, HF_FIVE: _FIVE}
        return {named(name, threads): Fixed(worker, gamma) for name, gamma in gammas.items()}

    @property
    def arguments(self) -> Sequence[str]:
        """Arguments of each `specdec up`."""
        return ["--compile"] if self.scale.compiled else []

    def system(self) -> Stack:
        """The whole system."""
        if self._system is None:
            self._system = self._started.enter_context(running(self.scale.pair, *self.arguments))
        return self._system

    def resident_bytes(self) -> Sequence[tuple[str, int]]:
        """Memory of every running process."""
        workers = [(named(spec.kind, spec.threads), worker.resident_bytes()) for spec, worker in self._workers.items()]
        return [*workers, *(self._system.resident_bytes().items() if self._system else ())]

    def _worker(self, spec: Spec) -> Process:
        if spec not in self._workers:
            self._workers[spec] = self._started.enter_context(Process(spec))
        return self._workers[spec]


def named(name: str, threads: int) -> str:
    """Return a peer's name, with the number of threads if there is more than one."""
    return name if threads == 1 else f"{name}, {TWO}"
