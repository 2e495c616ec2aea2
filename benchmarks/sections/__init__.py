"""The sections of `make bench`, by name, in the order they run."""

from collections.abc import Callable, Mapping

from benchmarks.reports.results import Report
from benchmarks.sections import (
    capacity,
    chat,
    concurrency,
    controllers,
    engine,
    grid,
    grid_stack,
    host_path,
    memory,
    one_core,
    passes,
    peers,
    pingpong,
    prompt,
    rtt,
    rules,
    shared_device,
    sources,
    spec,
    stack,
    theory,
    trees,
    verdicts,
)
from benchmarks.sections.lab import Lab

SECTIONS: Mapping[str, Callable[[Lab], Report]] = {
    "engine": engine.measure,
    "stack": stack.measure,
    "prompt": prompt.measure,
    "concurrency": concurrency.measure,
    "capacity": capacity.measure,
    "grid": grid.measure,
    "grid_stack": grid_stack.measure,
    "shared_device": shared_device.measure,
    "host_path": host_path.measure,
    "controllers": controllers.measure,
    "memory": memory.measure,
    "one_core": one_core.measure,
    "passes": passes.measure,
    "peers": peers.measure,
    "pingpong": pingpong.measure,
    "rtt": rtt.measure,
    "rules": rules.measure,
    "sources": sources.measure,
    "spec": spec.measure,
    "chat": chat.measure,
    "theory": theory.measure,
    "trees": trees.measure,
    "verdicts": verdicts.measure,
}
