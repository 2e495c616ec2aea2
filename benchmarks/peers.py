"""Peers side by side: each in its own process, asked in turn, and believed only when their greedy tokens agree."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import TracebackType
from typing import Self

from benchmarks.machine import ROOT
from benchmarks.run import Ask, Peer, Run
from benchmarks.worker import Spec
from specdec.errors import InternalError


class Process:
    """A worker; a context manager that ends it."""

    def __init__(self, spec: Spec) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.worker", json.dumps(asdict(spec))],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": str(spec.threads), "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        self._answer()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def generate(self, ask: Ask) -> Run:
        """Ask the worker."""
        if self._process.stdin is None:
            raise InternalError("the worker has no input")
        self._process.stdin.write(json.dumps(asdict(ask)) + "\n")
        self._process.stdin.flush()
        told = json.loads(self._answer())
        return Run(**{**told, "tokens": tuple(told["tokens"]), "gaps": tuple(told["gaps"])})

    def _answer(self) -> str:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise InternalError("a benchmark worker ended; its error is above")
        return line


class Fixed:
    """A peer at one draft length."""

    def __init__(self, peer: Peer, gamma: int | None) -> None:
        self._peer = peer
        self._gamma = gamma

    def generate(self, ask: Ask) -> Run:
        """Generate with that draft length."""
        return self._peer.generate(Ask(ask.prompt, ask.tokens, ask.temperature, ask.seed, self._gamma))


def interleave(peers: Mapping[str, Peer], asks: Sequence[Ask], repeats: int) -> dict[str, list[Run]]:
    """Warm up, then every peer in turn for every ask, `repeats` times over; entry i of all lists belongs together.

    Raises:
        InternalError: two peers gave different greedy tokens, so their times cannot be compared.
    """
    for peer in peers.values():
        peer.generate(asks[0])
    runs: dict[str, list[Run]] = {name: [] for name in peers}
    for turn in range(repeats):
        for ask in asks:
            order = list(peers) if turn % 2 == 0 else list(peers)[::-1]
            for name in order:
                runs[name].append(peers[name].generate(ask))
            _check(ask, {name: runs[name][-1] for name in peers})
    return runs


def _check(ask: Ask, runs: Mapping[str, Run]) -> None:
    if ask.temperature == 0.0 and len({run.tokens for run in runs.values()}) != 1:
        raise InternalError(f"greedy tokens differ between {', '.join(runs)}: their times cannot be compared")
