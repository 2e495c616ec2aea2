"""Peers in separate processes, run in turn, so that a slow moment of the machine affects all of them."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from benchmarks.machine import ROOT
from benchmarks.peers.lines import LineProcess
from benchmarks.peers.worker import Spec
from benchmarks.reports.results import Figure, same_tokens
from benchmarks.reports.statistics import Ratio, paired
from benchmarks.run import Ask, Peer, Run

Runs = Mapping[str, Sequence[Run]]
"""The runs of each peer. Entries with the same index belong to one turn."""


class Process(LineProcess):
    """A peer in a worker process."""

    def __init__(self, spec: Spec) -> None:
        variables = os.environ | {"OMP_NUM_THREADS": str(spec.threads), "PYTHONPATH": str(ROOT)}
        super().__init__([sys.executable, "-m", "benchmarks.peers.worker", json.dumps(asdict(spec))], variables)

    def generate(self, ask: Ask) -> Run:
        """Generate in the worker."""
        told = self.ask(asdict(ask))
        return Run(**{**told, "tokens": tuple(told["tokens"]), "gaps": tuple(told["gaps"])})


class Fixed:
    """A peer at one draft length."""

    def __init__(self, peer: Peer, gamma: int | None) -> None:
        self._peer = peer
        self._gamma = gamma

    def generate(self, ask: Ask) -> Run:
        """Generate with that draft length."""
        return self._peer.generate(replace(ask, gamma=self._gamma))


def interleave(peers: Mapping[str, Peer], asks: Sequence[Ask], repeats: int) -> dict[str, list[Run]]:
    """Warm up, then run every peer in turn for every ask, `repeats` times, in alternating order."""
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
    """Return the number of requests with equal greedy tokens from all peers, which shows that the work is equal."""
    turns = list(zip(*runs.values(), strict=True))
    return same_tokens(sum(len({run.tokens for run in turn}) == 1 for turn in turns), len(turns))


def ratio(runs: Runs, one: str, other: str) -> Ratio:
    """Return the speed of `one` divided by the speed of `other`."""
    return paired([run.speed for run in runs[one]], [run.speed for run in runs[other]])
