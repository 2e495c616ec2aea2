"""Peers side by side: each in its own process, asked in turn, so that a slow moment of the machine meets them all."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from types import TracebackType
from typing import Self

from benchmarks.machine import ROOT, resident_bytes
from benchmarks.results import Figure, same_tokens
from benchmarks.run import Ask, Peer, Run
from benchmarks.statistics import Ratio, paired
from benchmarks.worker import Spec
from specdec.errors import InternalError

Runs = Mapping[str, Sequence[Run]]
"""The runs of each peer; entries of one index belong to one turn."""


class Process:
    """A worker process; as a context manager it ends the process."""

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

    def resident_bytes(self) -> int:
        """The worker's memory."""
        return resident_bytes(self._process.pid)

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
        return self._peer.generate(replace(ask, gamma=self._gamma))


def interleave(peers: Mapping[str, Peer], asks: Sequence[Ask], repeats: int) -> dict[str, list[Run]]:
    """Warm up, then every peer in turn for every ask, `repeats` times over, in both orders."""
    for peer in peers.values():
        peer.generate(asks[0])
    runs: dict[str, list[Run]] = {name: [] for name in peers}
    for turn in range(repeats):
        for ask in asks:
            order = list(peers) if turn % 2 == 0 else list(peers)[::-1]
            for name in order:
                runs[name].append(peers[name].generate(ask))
    return runs


def agreement(runs: Runs) -> Figure:
    """Number of requests for which all peers gave the same greedy tokens; only then is equal work compared."""
    turns = list(zip(*runs.values(), strict=True))
    return same_tokens(sum(len({run.tokens for run in turn}) == 1 for turn in turns), len(turns))


def ratio(runs: Runs, one: str, other: str) -> Ratio:
    """Speed of `one` over speed of `other`."""
    return paired([run.speed for run in runs[one]], [run.speed for run in runs[other]])
