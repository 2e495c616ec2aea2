"""The comparison with other engines: the client's parser, and the reason that a failed peer leaves in its cell."""

import asyncio
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from signal import Signals
from typing import Any

import pytest

from benchmarks.machine import family, proportional_bytes
from benchmarks.pair import Pair
from benchmarks.peers.cells import BASE, Cell, Outcome
from benchmarks.peers.exactness import Answers, answers, row
from benchmarks.peers.openai_client import OpenAiClient, run_of, slice_of
from benchmarks.peers.servers import Server, Servers, failure_in
from benchmarks.reports.kept import Kept
from benchmarks.run import Ask, Run, Slice
from benchmarks.sections import peers
from benchmarks.sections.lab import Lab
from benchmarks.sections.peer_ways import WAYS, Contest
from benchmarks.sections.scale import Scale
from specdec.errors import ConfigError, InternalError

ASK = Ask((1, 2), 4)


def _event(*tokens: int) -> bytes:
    return b"data: " + json.dumps({"choices": [{"text": "", "token_ids": tokens}]}).encode() + b"\n\n"


def test_a_stream_is_read_by_tokens_wherever_its_pieces_are_cut() -> None:
    stream = _event(7) + _event(8, 9, 10) + b'data: {"choices": [], "usage": {}}\n\ndata: [DONE]\n\n'
    whole = run_of(ASK, 1.0, [(1.5, stream[:20]), (2.0, stream[20:60]), (3.0, stream[60:])])
    apart = run_of(ASK, 1.0, [(2.0, _event(7)), (5.0, _event(8, 9, 10)), (6.0, b"data: [DONE]\n\n")])
    assert whole.tokens == apart.tokens == (7, 8, 9, 10)
    assert (apart.first, apart.seconds, apart.opening, apart.rounds) == (1.0, 4.0, 1, 2)
    assert apart.gaps == (3.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("stream", "why"),
    [(_event(7), "1 tokens of 4"), (_event(7) + b'data: {"error": {"message": "engine died"}}\n', "engine died")],
)
def test_a_stream_that_ends_early_is_a_failure(stream: bytes, why: str) -> None:
    with pytest.raises(InternalError, match=why):
        run_of(ASK, 0.0, [(1.0, stream)])


def test_what_comes_outside_a_steady_load_does_not_count() -> None:
    early, late, again = (
        [(2.0, _event(7, 8)), (3.0, _event(9, 10))],
        [(4.0, _event(7)), (5.0, _event(8)), (6.0, _event(9, 10))],
        [(4.5, _event(7)), (5.5, _event(8, 9, 10))],
    )
    answers = [(1.0, early), (2.5, late), (3.5, again)]
    whole = slice_of([ASK] * 3, answers)
    assert (whole.seconds, whole.speed, whole.outside) == (5.0, 12 / 5.0, 0)
    steady = slice_of([ASK] * 3, answers, (2, 5.6))  # both streams have a token at 4.0
    assert steady.seconds == pytest.approx(1.6)
    assert steady.outside == 12 - 5
    assert steady.speed == pytest.approx(5 / 1.6)
    assert slice_of([ASK] * 3, answers, (2, 5.2)).outside == 12 - 2


def test_no_request_has_a_seed() -> None:
    assert "seed" not in OpenAiClient("http://x", "m").body(ASK)


async def _asked(reader: asyncio.StreamReader) -> dict[str, Any]:
    """Return the body of a request. Closing a socket with unread bytes would reset the connection."""
    head = await reader.readuntil(b"\r\n\r\n")
    lengths = [line.split(b":")[1] for line in head.lower().splitlines() if line.startswith(b"content-length:")]
    body: dict[str, Any] = json.loads(await reader.readexactly(int(lengths[0])))
    return body


async def _reply(answer: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await _asked(reader)
    writer.write(answer)
    writer.close()


@pytest.mark.asyncio
async def test_the_client_streams_from_a_server_and_says_what_it_refuses() -> None:
    head = b"HTTP/1.1 %b\r\nConnection: close\r\n\r\n"
    for status, body in ((b"200 OK", _event(7) + _event(8, 9, 10)), (b"400 Bad Request", b"no such model")):
        answer = head % status + body
        server = await asyncio.start_server(partial(_reply, answer), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        asked = asyncio.to_thread(OpenAiClient(f"http://127.0.0.1:{port}", "m").together, [ASK], {})
        if status.startswith(b"200"):
            assert (await asked).runs[0].tokens == (7, 8, 9, 10)
        else:
            with pytest.raises(InternalError, match="HTTP 400: no such model"):
                await asked
        server.close()


@pytest.mark.asyncio
async def test_a_stream_asks_again_when_its_answer_has_ended() -> None:
    running = [0, 0]

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        running[0] += 1
        running[1] = max(running)
        await asyncio.sleep(0.01)
        running[0] -= 1
        asked = await _asked(reader)
        answer = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + _event(*range(asked["max_tokens"]))
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(reply, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        asks = [ASK, replace(ASK, prompt=(3,)), replace(ASK, prompt=(4,))]
        done = await asyncio.to_thread(OpenAiClient(url, "m").together, asks, {}, 2)
    assert [len(run.tokens) for run in done.runs] == [2, 4, 4]  # the first answers end at different times
    assert running == [0, 2]


def test_a_cell_has_ratios_of_equal_turns_and_reasons_in_place_of_figures() -> None:
    one, two = Run((1, 2, 3, 4), 2.0, 0.5, gaps=(0.1, 0.2, 0.3)), Run((1, 2, 3, 4), 1.0, 0.7)
    slices = [Slice(2.0, [one]), Slice(1.0, [two])]
    base, fast = Outcome.of(slices, 2**20), Outcome((3.0, 6.0))
    cell = Cell(
        "demo",
        0.0,
        1,
        {BASE: base, "fast": fast, "bad": Outcome.failed("it did not start:\nerror: died of | " + "x" * 200)},
    )
    assert base.speeds == [2.0, 4.0]
    assert cell.ratio("fast").value == pytest.approx(1.5)  # type: ignore[union-attr]
    assert cell.ratio("bad") is None
    first, _, bad = cell.rows()
    assert first == ["demo", "0", "1", BASE, "1.00 (1.00..1.00)", "3.0", "500", "300.0", "1"]
    assert bad[4].startswith("error: died of / x")
    assert len(bad[4]) <= 120
    assert len(bad) == len(first)


def test_without_the_base_there_are_speeds_and_no_ratio() -> None:
    cell = Cell("demo", 0.0, 1, {BASE: Outcome.failed("no"), "fast": Outcome((3.0,))})
    assert cell.rows()[1][4:6] == ["–", "3.0"]


def test_a_result_is_kept_for_a_run_that_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "peers.jsonl"
    assert Kept(file, resume=False).once(("demo", 0.0), lambda: {"a": 1}) == {"a": 1}
    assert Kept(file, resume=True).once(("demo", 0.0), lambda: {"a": 2}) == {"a": 1}
    assert Kept(file, resume=False).once(("demo", 0.0), lambda: {"a": 3}) == {"a": 3}


@dataclass
class _Fake:
    """A server that fails from one request on and records its signals."""

    fails: bool = False
    signals: list[Signals] = field(default_factory=list)
    streams: list[int | None] = field(default_factory=list)

    def together(self, asks: Sequence[Ask], streams: int | None = None) -> Slice:
        self.streams.append(streams)
        if self.fails and len(asks[0].prompt) == len(ASK.prompt):
            raise InternalError("engine died")
        return Slice(1.0, [Run(tuple(range(ask.tokens)), 1.0, 0.1) for ask in asks])

    def memory(self) -> int:
        return 5

    def signal(self, number: Signals) -> None:
        self.signals.append(number)


def _started(server: _Fake, starts: list[str]) -> Callable[[], AbstractContextManager[Server]]:
    @contextmanager
    def start() -> Iterator[Server]:
        starts.append("start")
        yield server
        starts.append("end")

    return start


def test_a_server_is_stopped_while_it_is_not_asked() -> None:
    starts, server = list[str](), _Fake()
    with Servers({"one": _started(server, starts)}) as servers:
        for _ in range(2):
            with servers.asked("one") as asked:
                asked.together([ASK])
        assert server.signals == [Signals.SIGSTOP, Signals.SIGCONT, Signals.SIGSTOP]
    assert starts == ["start", "end"]


def test_a_server_that_fails_is_started_once_more_and_then_given_up() -> None:
    starts = list[str]()
    with Servers({"one": _started(_Fake(fails=True), starts)}) as servers:
        for _ in range(4):
            with pytest.raises(InternalError, match="engine died"), servers.asked("one") as asked:
                asked.together([ASK])
    assert starts == ["start", "end"] * 2


def test_a_peer_that_fails_does_not_end_the_cell(tmp_path: Path) -> None:
    lab = Lab(Scale(Pair(tmp_path, tmp_path), sessions=(1, 2), peers_temperatures=(0.0,), peers_alone=3))
    ways = [way for way in WAYS if way.server in (BASE, "vLLM ngram", "HF assisted") and not way.only_exactness]
    contest = Contest("demo", lab.scale.pair, [ASK] * 6, 2)
    servers = {BASE: _Fake(), "vLLM ngram": _Fake(fails=True), "HF assisted": _Fake()}
    with Servers({name: _started(each, []) for name, each in servers.items()}) as running:
        kept = Kept(tmp_path / "kept.jsonl", resume=True)
        one, two = peers._cells(lab, contest, running, ways, kept)
    assert {name: each.reason for name, each in one.outcomes.items()} == {
        BASE: "",
        "vLLM ngram": "engine died",
        "HF assisted": "",
    }
    assert [len(each.outcomes[BASE].speeds) for each in (one, two)] == [6, 2]  # one stream has more turns
    assert set(servers[BASE].streams) == {None, 1, 2}  # None is the request that wakes a server
    assert list(two.outcomes) == [BASE, "vLLM ngram"]  # a repeated request would show nothing new
    assert one.rows()[1][4] == "engine died"


def test_the_prompts_of_two_cells_differ(tmp_path: Path) -> None:
    lab = Lab(Scale(Pair(tmp_path, tmp_path), sessions=(1, 4), peers_alone=3))
    assert (peers._window(lab, 2, 1), peers._window(lab, 2, 4)) == (range(7), range(7, 31))


def test_figures_name_the_worst_cell() -> None:
    ours = [Outcome((speed,)) for speed in (90.0, 99.0)]
    cells = [
        Cell("demo", 0.0, streams, {BASE: Outcome((100.0,)), "ours on vLLM, auto": each})
        for streams, each in zip((1, 4), ours, strict=True)
    ]
    worst, count = peers._figures(cells)
    assert worst.name == "demo: ours on vLLM, auto / vLLM plain, worst of 2 cells"
    assert (worst.value[:4], worst.goal, worst.reached, count.value) == ("0.90", "≥ 0.97", "no", "2")


def test_peers_on_vllm_need_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "PYTHON", tmp_path / "python")
    with pytest.raises(ConfigError, match="make vllm"):
        peers.measure(Lab(Scale(Pair(tmp_path, tmp_path))))


def test_exactness_compares_greedy_answers_and_sampled_ones() -> None:
    def ask(shift: int, asks: Sequence[Ask]) -> list[tuple[int, ...]]:
        return [tuple(at + shift * int(each.temperature) for at in range(each.tokens)) for each in asks]

    prompts = [ASK, replace(ASK, prompt=(3, 4))]
    sound, wrong = (answers(partial(ask, shift), prompts, 40) for shift in (0, 1))
    found: dict[str, tuple[Answers, Answers] | str] = {
        "plain": sound,
        "same": sound,
        "wrong": wrong,
        "dead": "engine died",
    }
    assert row("same", "plain", found) == ["same", "plain", "2 of 2", "1.0000", "40", "exact"]
    assert row("wrong", "plain", found)[2:] == ["2 of 2", "0.0005", "40", "not exact"]
    assert row("dead", "plain", found)[2:] == ["–", "–", "–", "engine died"]


def test_a_log_says_why_a_server_did_not_start() -> None:
    log = "INFO all\n(EngineCore pid=7) Traceback\n(APIServer pid=9) ImportError: arctic-inference is required\n"
    assert failure_in(log) == "(APIServer pid=9) ImportError: arctic-inference is required"
    warned = "WARNING this can cause fd limit errors like `OSError: [Errno 24]`\nKeyError: 'ids'\n"
    assert failure_in(warned) == "KeyError: 'ids'"
    assert failure_in("killed\n") == "killed"
    assert failure_in("") == "it wrote nothing"


def test_the_family_of_a_process_has_its_memory() -> None:
    assert family(os.getpid())[0] == os.getpid()
    assert proportional_bytes(os.getpid()) > 2**20
    assert proportional_bytes(2**30) == 0
