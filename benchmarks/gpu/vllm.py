"""vLLM on the same device with the same weights, compared with our engine and our backend on vLLM."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.gpu.setup import Setup
from benchmarks.host_path.load import Client, Load
from benchmarks.machine import environment
from benchmarks.pair import Pair
from benchmarks.peers.cells import BASE, reason_of
from benchmarks.peers.servers import HttpServer, Servers, ours, vllm_alone
from benchmarks.reports.results import Figure, Report, Table, figure
from benchmarks.reports.statistics import paired, spread
from benchmarks.sections.peer_ways import PYTHON, SUFFIX
from specdec.errors import InternalError

_TEXT = """\
The target of [gpu_stack](#gpu_stack) in bfloat16 without drafts, by vLLM, by `specdec up` and by its backend `vllm`, on
one device, asked in turns over HTTP; one that is not asked is stopped. Each stream has one streamed answer of {tokens}
greedy tokens a turn, all begin at once, and tokens per second are of all streams from the first request to the last
token, in {turns} turns."""
_HEAD = ("streams", "system", "tokens/s", f"speed / {BASE}")
_NO_DRAFTS = {"speculation": {"mode": "off"}}
_WAYS: Mapping[str, Mapping[str, Any]] = {BASE: {}, "ours, off": _NO_DRAFTS, "ours on vLLM, off": _NO_DRAFTS}


def interpreter() -> Path | None:
    """Return the interpreter with vLLM, from `make vllm` or this one, or None if there is none."""
    if PYTHON.is_file():
        return PYTHON
    return Path(sys.executable) if find_spec("vllm") is not None else None


@dataclass(frozen=True, slots=True)
class Contest:
    """The systems that run in turn."""

    pair: Pair
    servers: Servers[HttpServer]
    client: Client
    tokens: int
    turns: int

    def speeds(self, streams: int) -> tuple[dict[str, list[float]], dict[str, str]]:
        """Return each system's tokens a second in every turn but the first, and the reasons of systems without any."""
        speeds, failed = {name: list[float]() for name in _WAYS}, dict[str, str]()
        for turn in range(self.turns + 1):
            for name in speeds if turn % 2 else reversed(speeds):
                if name not in failed:
                    try:
                        speeds[name].append(self._speed(name, streams, turn))
                    except InternalError as error:
                        failed[name] = reason_of(error.message)
        return {name: each[1:] for name, each in speeds.items() if name not in failed}, failed

    def _speed(self, name: str, streams: int, turn: int) -> float:
        prompts = self.pair.asks(streams, 64, self.tokens, first=turn * streams)
        with self.servers.asked(name) as server:
            shared = {
                "model": server.client.model, "max_tokens": self.tokens, "temperature": 0.0, "ignore_eos": True,
                "stream": True, "stream_options": {"include_usage": True}, **_WAYS[name],
            }  # fmt: skip
            requests = [{**shared, "prompt": list(each.prompt)} for each in prompts]
            loaded = self.client.run(Load(urlsplit(server.client.url).netloc, requests, streams))
        if loaded.refused:
            raise InternalError(f"{loaded.refused} of {streams} refused: {loaded.reason}")
        return loaded.speed


def measure(setup: Setup) -> Iterator[Report]:
    """Measure every number of streams, or report the reason if vLLM is missing."""
    turns, tokens, streams = 2, 96, (1, 16, 64, 256) if setup.shape == "8b" else (1, 2)
    text, python = _TEXT.format(tokens=tokens, turns=turns), interpreter()
    if python is None or setup.quick:
        reason = "there is no vLLM on this machine" if python is None else "vLLM takes minutes to start"
        yield Report("gpu_vllm", f"{text}\n\nNot measured: {reason}.")
        return
    pair, figures, rows = setup.padded(), list[Figure](), list[list[str]]()
    with Servers(_starts(setup, pair, python)) as servers, Client(environment()) as client:
        contest = Contest(pair, servers, client, tokens, turns)
        for count in streams:
            speeds, failed = contest.speeds(count)
            for name in _WAYS:
                ratio = paired(speeds[name], speeds[BASE]) if name in speeds and BASE in speeds else None
                speed = f"{spread(speeds[name]).value:.0f}" if name in speeds else failed[name]
                rows.append([str(count), name, speed, str(ratio or "–")])
                if ratio and name != BASE:
                    figures.append(figure(f"{name} / {BASE}, {count} streams", ratio))
    yield Report("gpu_vllm", text, figures, [Table(_HEAD, rows)])


def _starts(setup: Setup, pair: Pair, python: Path) -> Mapping[str, Callable[[], AbstractContextManager[HttpServer]]]:
    alone = ("--gpu-memory-utilization", "0.3") if setup.device == "cuda" else ()
    own = (*setup.arguments, "--drafters", "0", "--start-timeout", "600")
    return {
        BASE: partial(vllm_alone, python, SUFFIX, pair.target, {}, *alone, dtype="bfloat16", device=setup.device),
        "ours, off": partial(ours, pair, *own, **setup.variables),
        "ours on vLLM, off": partial(
            ours, pair, *own, "--backend", "vllm", "--vllm-python", str(python), **setup.variables
        ),
    }
