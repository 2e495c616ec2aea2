"""Other engines compared with ours, on equal cores with one client: vLLM with each way to draft, and `generate()`."""

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from benchmarks.peers import exactness as peer_exactness
from benchmarks.peers.cells import BASE, HEAD, Cell, Outcome
from benchmarks.peers.servers import Server, Servers
from benchmarks.reports.kept import Kept
from benchmarks.reports.results import Figure, Goal, Report, Table, figure
from benchmarks.reports.statistics import Ratio
from benchmarks.run import Ask, Slice
from benchmarks.sections.lab import Lab
from benchmarks.sections.peer_ways import LONGEST, PYTHON, WAYS, Contest, Way, contests, starts
from specdec.cli import known_models
from specdec.errors import ConfigError, InternalError

_TEXT = """\
All peers run in float32 on the cores {cores}. One client asks them in turns over HTTP, with token ids and without
seeds; the other peers are stopped meanwhile. vLLM 0.32 has its threads on one core and its front end on the other. The
processes of `specdec up --compile` share both cores. Its target has one thread; `native` uses a second one in passes
over 64 tokens or more. vLLM drafts 4 tokens, except for suffix decoding, which has its defaults; its draft model is the
drafter of `models/smollm2`, over all ids. For the demo pair ours drafts like `specdec up --local suffix`, and for the
chat model like `specdec up --target`, without a drafter. HF is `generate()` on two threads. It answers one request
after another, so it is measured with one stream only.

Each ratio compares runs of one turn, and every turn has its own prompts. The demo pair has {turns} turns of {tokens}
tokens after {prompt} of code. The chat model has {chat_turns} turns of {chat_tokens} tokens after questions of
`spec_bench.jsonl` with at most {longest} tokens. One stream alone has {alone} times as many turns. With several
streams, each has two questions in a turn, and its first answer has a length of its own. Time is counted from the first
token of the last stream until one stream has no question left, so all streams are always active. Before that each peer
has a shorter turn to warm up, and our "auto" has {learning:g} s of them, to learn the load. vLLM's suffix decoding
remembers answers, so it has seen some questions before. Tokens that arrive together count with no time between them.
Memory is that of all processes of a peer, with shared pages counted once; vLLM's includes 1 GiB for keys and values.

The last table compares answers of the demo pair. All greedy answers must be the same. A permutation test compares
sampled answers; "not exact" means p ≤ 0.001. vLLM's own verdicts at temperatures above 0 are known to be wrong on a CPU
(`docs/engines.md`), so its speeds with drafts are not comparable where the table says so."""


def measure(lab: Lab) -> Report:
    """Measure every cell of every model. Each is stored as soon as it is measured."""
    scale = lab.scale
    ways = [way for way in WAYS if way.server in scale.peers]
    if any("vLLM" in way.server for way in ways) and not PYTHON.is_file():
        raise ConfigError("the peers on vLLM need an environment of their own: run `make vllm`")
    kept = Kept.at_commit("peers", resume=scale.resume)
    cells, exact, missing = list[Cell](), list[list[str]](), ""
    with on_cores() as cores:
        for contest in contests(scale):
            with Servers(starts(contest, lab.arguments)) as servers:
                cells += _cells(lab, contest, servers, ways, kept)
                exact += _exact(lab, contest, servers, ways, kept) if contest.pair == scale.pair else []
    if scale.chat and known_models.find(scale.chat) is None:
        missing = f"\n\nNot measured: {scale.chat}, which is not on this machine: `specdec models get {scale.chat}`."
        sys.stderr.write(missing.strip() + "\n")
    (turns, chat_turns), (tokens, chat_tokens) = scale.peers_turns, scale.peers_tokens
    text = _TEXT.format(
        cores=cores, turns=turns, chat_turns=chat_turns, tokens=tokens, chat_tokens=chat_tokens, prompt=scale.prompt,
        longest=LONGEST, learning=scale.learning, alone=scale.peers_alone,
    )  # fmt: skip
    rows = [row for cell in cells for row in cell.rows()]
    return Report("peers", text + missing, _figures(cells), [Table(HEAD, rows), Table(peer_exactness.HEAD, exact)])


@contextmanager
def on_cores() -> Iterator[str]:
    """Keep this process and its children on the first two of its cores."""
    before = os.sched_getaffinity(0)
    chosen = sorted(before)[:2]
    os.sched_setaffinity(0, chosen)
    try:
        yield " and ".join(map(str, chosen))
    finally:
        os.sched_setaffinity(0, before)


def _cells(lab: Lab, contest: Contest, servers: Servers[Server], ways: Sequence[Way], kept: Kept) -> list[Cell]:
    cells = list[Cell]()
    for temperature in lab.scale.peers_temperatures:
        for streams in lab.scale.sessions:
            asked = [way for way in ways if not way.only_exactness and (streams == 1 or not way.one_by_one)]
            asks = [replace(ask, temperature=temperature) for ask in contest.prompts]
            turns = _turns_of(lab, contest.turns, streams)
            key = (contest.model, temperature, streams, asks[0].tokens, turns, *lab.scale.peers)
            window = _window(lab, contest.turns, streams)
            mine = [asks[at % len(asks)] for at in window]
            measured = partial(_turns, servers, asked, mine, streams, lab.scale.learning)
            found = {name: Outcome(**each) for name, each in kept.once(key, measured).items()}
            cell = Cell(contest.model, temperature, streams, found)
            cells.append(cell)
            for row in cell.rows():
                sys.stderr.write(f"peers: {', '.join(row)}\n")
    return cells


def _turns_of(lab: Lab, turns: int, streams: int) -> int:
    return turns * lab.scale.peers_alone if streams == 1 else turns


def _answers_of(streams: int) -> int:
    """Return the number of answers in a turn: two for each of several streams, so that they do not all end together."""
    return streams if streams == 1 else 2 * streams


def _window(lab: Lab, turns: int, streams: int) -> range:
    """Return the prompts of a cell: those of each stream in each turn."""
    sizes = {each: _answers_of(each) * (_turns_of(lab, turns, each) + 1) for each in (*lab.scale.sessions, streams)}
    before = sum(sizes[each] for each in lab.scale.sessions if each < streams)
    return range(before, before + sizes[streams])


def _turns(
    servers: Servers[Server], ways: Sequence[Way], asks: Sequence[Ask], streams: int, learning: float
) -> Mapping[str, Mapping[str, Any]]:
    """Return each way's outcome in stored form. The first turn is a warm-up, and a way that failed gets no more turns.

    Args:
        learning: seconds for which a way that adapts runs in the first turn.
    """
    slices: dict[str, list[Slice]] = {way.name: [] for way in ways}
    memory, failed = dict[str, int](), dict[str, str]()
    answers = _answers_of(streams)
    for turn in range(len(asks) // answers):
        mine = [_shortened(ask, turn) for ask in asks[turn * answers : (turn + 1) * answers]]
        for way in ways if turn % 2 else reversed(ways):
            if way.name in failed:
                continue
            try:
                with servers.asked(way.server) as server:
                    own = [replace(ask, gamma=way.gamma) for ask in mine]
                    slices[way.name].append(_asked(server, own, streams, learning if way.learns and not turn else 0.0))
                    memory[way.name] = server.memory()
            except InternalError as error:
                failed[way.name] = error.message
    return {
        name: asdict(Outcome.failed(failed[name]) if name in failed else Outcome.of(each[1:], memory[name]))
        for name, each in slices.items()
    }


def _asked(server: Server, asks: Sequence[Ask], streams: int, seconds: float) -> Slice:
    """Run the asks once, repeat them for `seconds`, and return the last slice."""
    until = time.monotonic() + seconds
    done = server.together(asks, streams)
    while time.monotonic() < until:
        done = server.together(asks, streams)
    return done


def _shortened(ask: Ask, turn: int) -> Ask:
    return ask if turn else replace(ask, tokens=max(2, ask.tokens // 2))


def _exact(lab: Lab, contest: Contest, servers: Servers[Server], ways: Sequence[Way], kept: Kept) -> list[list[str]]:
    """Compare each way with its sibling, and ours also with plain vLLM."""
    prompts, samples = contest.prompts[:8], lab.scale.peers_samples

    def found() -> list[list[str]]:
        answers = {way.name: _answers(servers, way, prompts, samples) for way in ways}
        own = [(way.name, BASE) for way in ways if way.name in ("ours, auto", "ours on vLLM, auto")]
        pairs = [*((way.name, way.sibling) for way in ways if way.name != way.sibling), *own]
        return [peer_exactness.row(*each, answers) for each in pairs if set(each) <= answers.keys()]

    rows: list[list[str]] = kept.once(("exactness", contest.model, samples, *lab.scale.peers), found)
    return rows


def _answers(
    servers: Servers[Server], way: Way, prompts: Sequence[Ask], samples: int
) -> tuple[peer_exactness.Answers, peer_exactness.Answers] | str:
    try:
        with servers.asked(way.server) as server:

            def ask(asks: Sequence[Ask]) -> peer_exactness.Answers:
                done = server.together([replace(each, gamma=way.gamma) for each in asks])
                return [run.tokens for run in done.runs]

            return peer_exactness.answers(ask, prompts, samples)
    except InternalError as error:
        return Outcome.failed(error.message).reason


def _figures(cells: Sequence[Cell]) -> list[Figure]:
    """Return the figures with goals, for each model."""
    figures = list[Figure]()
    for model in dict.fromkeys(cell.model for cell in cells):
        mine = [cell for cell in cells if cell.model == model]
        greedy = [cell for cell in mine if cell.temperature == 0]
        many = [cell for cell in mine if cell.streams > 1]
        alone = [cell for cell in greedy if cell.streams == 1]
        draft = "vLLM draft model"
        for one, other, some, goal in (
            ("ours on vLLM, auto", BASE, mine, 0.97),
            ("ours on vLLM, auto", draft, alone, 1.3),
            ("ours, off", BASE, many, 0.9),
            ("ours, auto", draft, greedy, 1.2),
        ):
            figures += _worst(f"{model}: {one} / {other}", [cell.ratio(one, other) for cell in some], Goal(goal))
        figures.append(Figure(f"{model}: cells", str(len(mine))))
    return figures


def _worst(name: str, ratios: Sequence[Ratio | None], goal: Goal) -> list[Figure]:
    """Return the least ratio of the cells, or nothing if no cell has one."""
    found = [each for each in ratios if each]
    worst = f", worst of {len(found)} cells" if len(found) > 1 else ""
    return [figure(name + worst, min(found, key=lambda each: each.value), goal)] if found else []
