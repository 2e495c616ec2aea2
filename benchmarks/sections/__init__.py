"""The sections of `make bench`, by name."""

from collections.abc import Callable, Mapping

from benchmarks.results import Report
from benchmarks.sections import concurrency, engine, passes, stack, theory
from benchmarks.sections.scale import Scale

SECTIONS: Mapping[str, Callable[[Scale], Report]] = {
    "engine": engine.measure,
    "stack": stack.measure,
    "concurrency": concurrency.measure,
    "passes": passes.measure,
    "theory": theory.measure,
}
