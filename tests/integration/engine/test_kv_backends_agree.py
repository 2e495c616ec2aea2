"""An engine over pages and one over slabs agree after any sequence of moves, and no page is lost at the end."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specdec.engine import Chunk, NativeEngine
from specdec.trees.tree import Tree
from tests.support.devices import NO_CUDA
from tests.support.kv_backends import KV_BACKENDS, session_kv

pytestmark = pytest.mark.integration

PAGES = 12
TOKEN_BYTES = 3 * 2 * (8 + 8) * 4
LIMIT = 120
TREE = Tree((-1, 0, 0, 2, 1, 3))
PATH = (0, 2, 3)
TEXT = [(7 + 31 * i * i) % 320 for i in range(LIMIT)]


@dataclass
class World:
    """Both engines, and the tokens of each session. Tokens without KV are pending."""

    engines: tuple[NativeEngine, NativeEngine]
    sessions: dict[str, list[int]] = field(default_factory=dict)
    turn: int = 0

    def fresh(self, count: int) -> list[int]:
        """Return tokens that no session has had."""
        self.turn += 1
        return [(self.turn * 37 + 11 * index * index) % 320 for index in range(count)]

    def both(self, use: Callable[[NativeEngine], bool], undo: Callable[[NativeEngine], None] | None = None) -> bool:
        """Whether `use` succeeds on both engines. If it succeeds on one, it is undone there."""
        done = [engine for engine in self.engines if use(engine)]
        if undo is not None and len(done) == 1:
            undo(done[0])
        return len(done) == 2

    def step(self, name: str, move: str, size: int) -> None:
        """Make one move of a session if it is possible."""
        others = sorted(self.sessions)
        if name not in self.sessions:
            if move == "restore" and others:
                self.restore(name, others[size % len(others)])
            else:
                self.admit(name, size)
        elif move == "forward":
            self.forward(others[: 1 + size % len(others)], size % 8)
        elif move == "truncate":
            self.truncate(name, size)
        elif move == "branch":
            self.branch(name)
        elif move == "release":
            self.release(name)

    def admit(self, name: str, size: int) -> None:
        text = TEXT[:size] + self.fresh(1)
        if self.both(lambda engine: engine.admit(name, LIMIT, text), lambda engine: engine.release(name)):
            self.sessions[name] = text

    def restore(self, name: str, source: str) -> None:
        """Start a session on each engine from the other engine's export of another session."""
        held = min(engine.length(source) for engine in self.engines)
        if not held or not self.both(lambda engine: engine.admit(name, LIMIT), lambda engine: engine.release(name)):
            return
        tokens = self.sessions[source][:held]
        kvs = [session_kv(engine, source, 0, held) for engine in self.engines]
        torch.testing.assert_close(*kvs, rtol=1e-4, atol=1e-4)
        kept = [engine.restore(name, 0, tokens, kv) for engine, kv in zip(self.engines, reversed(kvs), strict=True)]
        self.sessions[name] = list(self.sessions[source])
        if not all(kept):
            self.release(name)

    def release(self, name: str) -> None:
        for engine in self.engines:
            engine.release(name)
        del self.sessions[name]

    def truncate(self, name: str, size: int) -> None:
        tokens = self.sessions[name]
        del tokens[max(1, len(tokens) - size) :]
        for engine in self.engines:
            engine.truncate(name, min(engine.length(name), len(tokens) - 1))

    def forward(self, names: list[str], size: int) -> None:
        """Compute each session's pending tokens and `size` drafts, and keep half of the drafts."""
        drafts = {name: self.fresh(size) for name in names if len(self.sessions[name]) + size <= LIMIT}
        able = [name for name in drafts if self.reserve(name, size)]
        if able:
            self.compare([(name, drafts[name], None) for name in able])
        for name in able:
            self.sessions[name] += drafts[name][: size // 2]
            for engine in self.engines:
                engine.truncate(name, len(self.sessions[name]))
            self.sessions[name] += self.fresh(1)

    def branch(self, name: str) -> None:
        """Compute a tree of drafts and keep one path."""
        if len(self.sessions[name]) + len(TREE) >= LIMIT or not self.reserve(name, len(TREE)):
            return
        nodes = self.fresh(len(TREE))
        bases = [engine.length(name) for engine in self.engines]
        self.compare([(name, nodes, TREE)])
        for engine, base in zip(self.engines, bases, strict=True):
            pending = len(self.sessions[name]) - base
            engine.keep(name, base, [*range(pending), *(pending + node for node in PATH)])
        self.sessions[name] += [*(nodes[node] for node in PATH), *self.fresh(1)]

    def reserve(self, name: str, more: int) -> bool:
        return self.both(lambda engine: engine.reserve(name, len(self.sessions[name]) + more))

    def compare(self, work: list[tuple[str, list[int], Tree | None]]) -> None:
        """Compare logits of one pass of each engine over these sessions with drafts, from the last pending token on."""
        logits = []
        for engine in self.engines:
            chunks = []
            for name, drafts, tree in work:
                pending = self.sessions[name][engine.length(name) :]
                parents = None if tree is None else tree.after(len(pending)).parents
                chunks.append(Chunk(name, [*pending, *drafts], len(drafts) + 1, parents))
            logits.append(engine.forward(chunks).cpu())
        torch.testing.assert_close(*logits, rtol=1e-3, atol=1e-4)


@pytest.fixture(scope="module", params=["pages", "graphs", pytest.param("cuda", marks=NO_CUDA)])
def engines(request: pytest.FixtureRequest, tiny: Callable[[str], Path]) -> Iterator[tuple[NativeEngine, NativeEngine]]:
    """One engine over slabs that never runs out, and one over a few pages."""

    def load(kv_backend: str, kv_bytes: int) -> NativeEngine:
        where: dict[str, Any] = (
            {"device": "cuda"} if kv_backend == "cuda" else {"device": "cpu", "kv_backend": KV_BACKENDS[kv_backend]()}
        )
        return NativeEngine.load(tiny("llama"), dtype="float32", kv_bytes=kv_bytes, threads=1, **where)

    return load("slabs", 1 << 24), load(request.param, PAGES * 16 * TOKEN_BYTES)


MOVES = ("admit", "forward", "forward", "branch", "truncate", "restore", "release")
moves = st.lists(st.tuples(st.integers(0, 4), st.sampled_from(MOVES), st.integers(1, 60)), min_size=12, max_size=40)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moves)
def test_an_engine_over_pages_says_what_one_over_slabs_says(
    engines: tuple[NativeEngine, NativeEngine], moves: list[tuple[int, str, int]]
) -> None:
    world = World(engines)
    for number, move, size in moves:
        world.step(f"s{number}", move, size)
    for name in list(world.sessions):
        world.release(name)
    for engine in engines:
        assert engine.memory.live == 0
    paged = engines[1]
    assert paged.admit("all", PAGES * 16, [1] * PAGES * 16)
    assert paged.memory.live == paged.memory.budget
    paged.release("all")
