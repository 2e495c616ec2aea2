"""The host path's benchmark: its fixed target, its cheap client, and the text of its cells."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks import machine
from benchmarks.host_path.cells import CPU_HEAD, SPEED_HEAD, Cell, Outcome, Turn, turn_of
from benchmarks.host_path.load import Load, Loaded, round_tokens, send
from benchmarks.host_path.target import CYCLE, make_target
from benchmarks.peers.cells import BASE
from benchmarks.sections import host_path
from specdec.errors import ConfigError
from tests.support.tiny_models import make_tiny_model

OFF = "ours, off"


def test_the_target_goes_on_as_known_and_a_lookup_of_its_prompt_is_right(tmp_path: Path) -> None:
    cycles = make_target(make_tiny_model(tmp_path / "tiny"), tmp_path / "target")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "target")
    assert model.config.num_hidden_layers == 1
    for number in (0, 1, len(cycles.cycles) + 2):
        prompt = cycles.prompt(number)
        assert prompt[:CYCLE] == prompt[CYCLE:]
        made = model.generate(torch.tensor([prompt]), max_new_tokens=20, min_new_tokens=20, do_sample=False)
        assert made[0, len(prompt) :].tolist() == cycles.continuation(number, 20)
    count = CYCLE * len(cycles.cycles)
    assert len({tuple(cycles.prompt(number)) for number in range(count)}) == count


def _event(text: str, **more: object) -> bytes:
    data = b"data: " + json.dumps({"choices": [{"text": text}], **more}).encode() + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


_USAGE = {"usage": {"completion_tokens": 6}, "metrics": {"num_accepted_draft_tokens": 4}}
_STREAM = _event("ab") + _event("c", **_USAGE) + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
_STREAMED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + _STREAM
_WHOLE = b"HTTP/1.1 200 OK\r\n\r\n" + json.dumps({"choices": [{"text": "abc"}], **_USAGE}).encode()
_REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\n\r\n" + json.dumps(_USAGE).encode()


@asynccontextmanager
async def _listening(answer: Callable[[asyncio.StreamReader], Awaitable[bytes]]) -> AsyncIterator[str]:
    """Run a server that sends the result of `answer` in two pieces. All connections end with it. Return its address."""
    handling = set[asyncio.Task[None] | None]()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handling.add(asyncio.current_task())
        content = await answer(reader)
        writer.write(content[: len(content) // 2])
        await writer.drain()
        writer.write(content[len(content) // 2 :])
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()[:2]
        yield f"{host}:{port}"
        await asyncio.gather(*filter(None, handling))


@asynccontextmanager
async def _serving(reply: Callable[[int], bytes]) -> AsyncIterator[str]:
    """Run a server that answers request number n with the result of `reply`. Return its address."""
    numbers = iter(range(1000))

    async def answer(reader: asyncio.StreamReader) -> bytes:
        head = await reader.readuntil(b"\r\n\r\n")
        (length,) = (int(line.split(b":")[1]) for line in head.lower().splitlines() if b"content-length:" in line)
        assert json.loads(await reader.readexactly(length))["max_tokens"] == 6
        return reply(next(numbers))

    async with _listening(answer) as address:
        yield address


def _load(address: str, requests: int, streams: int) -> Load:
    return Load(address, [{"max_tokens": 6}] * requests, streams)


@pytest.mark.parametrize(("reply", "streams"), [(_STREAMED, 1), (_WHOLE, 0)])
async def test_the_client_counts_whole_answers(reply: bytes, streams: int) -> None:
    async with _serving(lambda _: reply) as address:
        loaded = await send(_load(address, 5, 2))
    assert (loaded.tokens, loaded.refused, loaded.reason) == (30, 0, "")
    assert (loaded.text, loaded.round_tokens) == ("abc", 3.0)
    assert len(loaded.firsts) == 5 * streams
    assert all(0 < first < loaded.seconds for first in loaded.firsts)


@pytest.mark.parametrize("reply", [_REFUSAL, _STREAMED[:-70], b"", _STREAMED.replace(b": 6", b": 5")])
async def test_an_answer_that_is_refused_or_not_whole_is_counted_with_what_came(reply: bytes) -> None:
    async with _serving(lambda number: _STREAMED if number % 2 else reply) as address:
        loaded = await send(_load(address, 4, 1))
    assert (loaded.tokens, loaded.refused) == (12, 2)
    assert loaded.reason == (reply[:300].decode() or "no answer")


async def test_a_server_that_is_not_there_or_silent_refuses_all() -> None:
    async with _serving(lambda _: _WHOLE) as address:
        pass
    assert (await send(_load(address, 3, 3))).refused == 3

    async def never(reader: asyncio.StreamReader) -> bytes:
        await reader.read()  # the client closes the connection
        return b""

    async with _listening(never) as address:
        loaded = await send(replace(_load(address, 3, 3), limit=0.2))
    assert (loaded.refused, loaded.tokens) == (3, 0)
    assert loaded.reason == "answers had not ended after 0.2 s"


def test_tokens_per_round_follow_from_the_drafts_that_were_accepted() -> None:
    assert round_tokens(b'{"num_accepted_draft_tokens":84}', 126) == 3.0
    assert round_tokens(b"{}", 126) is None
    assert round_tokens(b'{"num_accepted_draft_tokens": 3}', 3) is None


def test_processor_time_is_of_the_role_of_the_nearest_process_that_has_one() -> None:
    spin = "import subprocess, sys, time\nend = time.process_time() + 0.05\nwhile time.process_time() < end: pass\n"
    child = spin + "print(flush=True)\ninput()"
    parent = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (pid,) = machine.children(process.pid)
        named = machine.spent(os.getpid(), {os.getpid(): "tests", process.pid: "server", pid: "engine"})
        inherited = machine.spent(process.pid, {process.pid: "server"})
        process.communicate(b"\n")
    assert named["engine"] >= 0.04
    assert named["tests"] > 0
    assert inherited["server"] >= named["server"] + named["engine"]
    assert machine.spent(process.pid, {}) == {"others": 0.0}


_LOADED = Loaded(
    seconds=2.0, tokens=100, firsts=[0.1, 0.2], refused=1, reason="", cpu=0.001, text="ab", round_tokens=2.5
)


def test_a_turn_has_processor_time_by_role_for_each_token() -> None:
    cpu = {"verifier": 0.002, "redis": 0.003, "redis-kv": 0.001, "others": 0.0}
    turn = turn_of(_LOADED, cpu, 4, "ab")
    assert turn.cpu == pytest.approx({"verifier": 20.0, "store": 40.0, "others": 0.0})
    assert turn.cost == pytest.approx(60.0)
    assert (turn.speed, turn.client, turn.first, turn.right) == (50.0, pytest.approx(10.0), (0.1, 0.2), True)
    assert not turn_of(_LOADED, {}, 4, "ba").right
    assert turn_of(replace(_LOADED, firsts=[], tokens=0), cpu, 4, "ab").first is None


def _turn(speed: float, cost: float = 80.0, first: float = 0.1, refused: int = 0) -> Turn:
    return Turn(speed, {"verifier": cost}, 2.0, (first, 2 * first), refused, 256, True, 3.0)


def _cell(streams: int, streamed: bool, **turns: Turn) -> Cell:
    names: Mapping[str, str] = {"vllm": BASE, "off": OFF, "rounds": "ours, 3 a round"}
    return Cell(streams, streamed, {names[name]: Outcome([turn] * 3) for name, turn in turns.items()})


def test_a_cell_has_rows_of_speed_and_of_processor_time() -> None:
    cell = _cell(256, True, vllm=_turn(100.0), off=_turn(150.0, refused=2))
    failed = Cell(256, True, {**cell.outcomes, "dead": Outcome(reason="engine died")})
    *_, off, dead = failed.speed_rows()
    assert off == [
        "256", "streamed", OFF, "150 (150..150)", "1.50 (1.50..1.50)", "100", "200", "6 of 768", "3.00",
    ]  # fmt: skip
    assert dead[3:] == ["engine died", *["–"] * 5]
    assert [len(row) for row in failed.speed_rows()] == [len(SPEED_HEAD)] * 3
    one, _ = failed.cpu_rows()
    assert one == ["256", "streamed", BASE, "80 (80..80)", "80.0", *[""] * 6, "2.0"]
    assert len(one) == len(CPU_HEAD)


def test_figures_are_those_that_goals_are_set_for() -> None:
    cells = [
        _cell(64, True, vllm=_turn(100.0), off=_turn(120.0)),
        _cell(256, False, vllm=_turn(100.0), off=_turn(160.0)),
        _cell(256, True, vllm=_turn(100.0), off=_turn(90.0, 101.0, first=0.13), rounds=_turn(200.0, 49.0)),
        _cell(1024, True, vllm=_turn(100.0), off=_turn(121.0, refused=1), rounds=_turn(200.0)),
    ]
    figures = {each.name: (each.value.split()[0], each.reached) for each in host_path._figures(cells)}
    assert figures == {
        "first answers as known": ("30", "yes"),
        f"{OFF} / {BASE}, 64 streams, streamed": ("1.20", "yes, not the aim"),
        f"{OFF} / {BASE}, 256 streams, whole": ("1.60", "yes, the aim too"),
        f"{OFF} / {BASE}, 256 streams, streamed": ("0.90", "no"),
        f"{OFF}: 1024 streams / 64, streamed": ("1.01", "yes"),
        "ours: refused, 1024 streams": ("3", "no"),
        f"{OFF}: CPU µs a token, 256 streams, streamed": ("101.00", "no"),
        "ours, 3 a round: CPU µs a token, 256 streams, streamed": ("49.00", "yes"),
        f"{OFF} / {BASE}: first token p50, 256 streams, streamed": ("1.30", "no"),
        f"{OFF} / {BASE}: first token p95, 256 streams, streamed": ("1.30", "no"),
    }


def test_a_wrong_answer_shows() -> None:
    wrong = _cell(64, True, off=replace(_turn(1.0), right=False))
    (figure,) = host_path._figures([wrong])
    assert (figure.value, figure.reached) == ("0 of 3", "no")


def test_vllm_is_asked_in_an_environment_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.pair import Pair
    from benchmarks.sections.lab import Lab
    from benchmarks.sections.scale import Scale

    monkeypatch.setattr(host_path, "PYTHON", tmp_path / "python")
    with pytest.raises(ConfigError, match="make vllm"):
        host_path.measure(Lab(Scale(Pair(tmp_path, tmp_path))))
