"""Sequences in plain decoding join and leave between two consecutive passes."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from specdec.serving.settings import ModelSettings
from tests.support.gateway_fakes import until
from tests.unit.verifier_service.passes.scheduling import AwaitedLoop, admitted, scheduling, steps
from tests.unit.verifier_service.verifier_fakes import TableEngine, continuation, make_row, point_mass
from verifier_service.backends.batch_plan import Outcome, Row
from verifier_service.backends.model_step import Changes, ModelStep, PendingChanges
from verifier_service.backends.model_thread import ModelThread, joins
from verifier_service.config import VerifierSettings

SETTINGS = VerifierSettings(model=ModelSettings(path=Path("model")), chunk_tokens=4)


def plain(
    name: str, tokens: Sequence[int] = (3,), goal: int | None = None, limit: int = 1000, **changes: object
) -> Row:
    return replace(make_row(name, tokens, goal, limit=limit, **changes), runs_ahead=True)


def newcomer(name: str, tokens: Sequence[int] = (3,)) -> Row:
    return plain(name, tokens, 0)


class Run:
    """One run of the model, in which every session requests its next row at once."""

    def __init__(self, at: dict[int, Callable[[], None]], passes: int) -> None:
        """`at` maps step numbers, counted from 0, to actions after these steps. The run stops after `passes` steps."""
        self.engine = TableEngine()
        self.model = ModelThread(self.engine, SETTINGS)
        self.at = at
        self.left = passes
        self.steps: list[ModelStep] = []
        self.following: list[list[Row]] = []

    def begin(self, *rows: Row) -> None:
        self.model.step((), [replace(row, goal=0) for row in rows])
        self.steps.append(self.model.run((), rows, self._passed))

    def _passed(self, step: ModelStep, following: Sequence[Row]) -> None:
        number = len(self.steps)
        self.steps.append(step)
        self.following.append(list(following))
        for row in following:
            if row.prefetched:
                self.model.flags.ask(row)
        self.at.get(number, lambda: None)()
        if len(self.steps) == self.left:
            self.model.flags.stop()

    @property
    def sessions(self) -> list[list[str]]:
        """Sessions of each pass."""
        return [[chunk.session for chunk in batch] for batch in self.engine.batches]

    def tokens(self, name: str) -> tuple[int, ...]:
        """Return the committed tokens of a sequence."""
        results = (item for step in self.steps for item in step.results.items())
        outcomes = [result for row, result in results if row.kv_name == name and isinstance(result, Outcome)]
        return tuple(token for outcome in outcomes for token in outcome.verdict.tokens)


def test_who_comes_is_let_in_and_read_while_the_others_go_on() -> None:
    run = Run({1: lambda: run.model.join((), [newcomer("b", (5, 6))])}, 6)
    run.begin(plain("a"))
    assert run.sessions == [["a"]] * 3 + [["a", "b"]] * 3
    assert run.tokens("a") == continuation(3, 6)
    assert run.tokens("b") == continuation(6, 3)


def test_a_long_prompt_is_read_in_pieces_beside_the_others() -> None:
    run = Run({0: lambda: run.model.join((), [newcomer("b", range(10))])}, 6)
    run.begin(plain("a"))
    pieces = [chunk.tokens for batch in run.engine.batches for chunk in batch if chunk.session == "b"]
    assert [len(piece) for piece in pieces[:3]] == [4, 4, 2]
    assert all("a" in names for names in run.sessions)
    assert run.tokens("a") == continuation(3, 6)


def test_who_has_ended_leaves_its_memory_and_its_row() -> None:
    run = Run({1: lambda: run.model.join(["a"], ())}, 4)
    run.begin(plain("a"), plain("b"))
    assert run.sessions == [["a", "b"]] * 3 + [["b"]] * 2
    assert set(run.engine.held) == {"b"}


def test_who_has_ended_before_a_pass_took_it_never_comes() -> None:
    def come_and_go() -> None:
        run.model.join((), [newcomer("b")])
        run.model.join(["b"], ())

    run = Run({0: come_and_go}, 3)
    run.begin(plain("a"))
    assert run.sessions == [["a"]] * 4
    assert set(run.engine.held) == {"a"}


@pytest.mark.parametrize("end", [{"limit": 3}, {"stop_token_ids": continuation(3, 2)[1:]}])
def test_a_sequence_at_its_end_does_not_hold_up_the_others(end: dict[str, object]) -> None:
    run = Run({}, 4)
    run.begin(plain("a", **end), plain("b"))  # type: ignore[arg-type]
    assert run.sessions == [["a", "b"]] * 2 + [["b"]] * 3


def test_a_run_whose_last_sequence_has_ended_ends() -> None:
    run = Run({0: lambda: run.model.join(["a"], ())}, 9)
    run.begin(plain("a"))
    assert run.sessions == [["a"]] * 2
    assert run.engine.held == {}
    assert run.following[-1] == []


def test_rows_are_by_rank() -> None:
    run = Run({0: lambda: run.model.join((), [replace(newcomer("b"), rank=-1.0)])}, 3)
    run.begin(plain("a"))
    assert run.sessions[-1] == ["b", "a"]


def test_what_no_pass_took_is_there_for_the_next_run() -> None:
    run = Run({}, 1)
    run.begin(plain("a"), plain("b"))
    run.model.join(["b"], [newcomer("c")])
    run.model.flags.go()
    run.left = 9
    run.begin(plain("a", (3, *continuation(3, 2))))
    assert set(run.engine.held) == {"a", "c"}
    assert run.tokens("c")


def test_who_ends_before_a_run_with_its_row_has_begun_has_no_part_in_it() -> None:
    run = Run({}, 3)
    run.model.join(["b"], ())
    run.begin(plain("a"), plain("b"))
    assert set(run.engine.held) == {"a"}
    assert run.sessions == [["a"]] * 4


def test_a_row_of_an_order_takes_the_place_of_a_pending_one() -> None:
    pending, mine = PendingChanges(), newcomer("a")
    pending.add((), [mine, newcomer("b"), newcomer("c")])
    pending.add(["c"], ())
    assert pending.begin([newcomer("b")]) == ["c"]
    assert pending.take() == Changes([], [mine])
    assert pending.take() == Changes([], [])


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (plain("a"), True),
        (newcomer("a"), True),
        (make_row("a"), False),
        (replace(plain("a"), draft=point_mass(5)), False),
        (plain("a", range(4096)), True),
        (plain("a", range(4097)), False),
    ],
)
def test_rows_join_that_need_nothing_of_the_loop_and_are_soon_handed_over(row: Row, expected: bool) -> None:
    assert joins(row) is expected


async def decode(scheduler: AwaitedLoop, name: str, count: int) -> tuple[int, ...]:
    """Decode like a session that never drafts."""
    tokens = [3]
    async with scheduler.admitted(newcomer(name)):
        for _ in range(count):
            tokens += (await scheduler.verify(plain(name, tuple(tokens)))).verdict.tokens
    return tuple(tokens[1:])


async def test_sessions_that_come_and_end_in_a_run_keep_their_tokens() -> None:
    engine = TableEngine()
    counts = {name: 200 * (number + 1) for number, name in enumerate("abcd")}

    async def later(scheduler: AwaitedLoop, name: str) -> tuple[int, ...]:
        await until(lambda: len(engine.batches) >= 10 * "abcd".index(name))
        return await decode(scheduler, name, counts[name])

    async with scheduling(engine) as scheduler:
        made = await asyncio.gather(*(later(scheduler, name) for name in "abcd"))
        await until(lambda: not engine.held)
        assert scheduler.engine_loop._rows == {}
    assert made == [continuation(3, count) for count in counts.values()]
    assert {"a", "b", "c", "d"} in [{chunk.session for chunk in batch} for batch in engine.batches]


async def test_who_is_cancelled_in_a_run_leaves_nothing_and_the_others_go_on() -> None:
    engine = TableEngine()
    async with scheduling(engine) as scheduler:
        lasting = asyncio.create_task(decode(scheduler, "a", 900))
        await until(lambda: bool(engine.batches))
        for name in ("b1", "b2", "b3"):
            passing = asyncio.create_task(decode(scheduler, name, 900))
            await until(lambda name=name: name in engine.held)  # type: ignore[misc]
            passing.cancel()
            await asyncio.wait([passing])
        assert await lasting == continuation(3, 900)
        await until(lambda: not engine.held)
        assert scheduler.engine_loop._rows == {}


async def test_a_session_that_drafts_comes_by_the_loop() -> None:
    engine = TableEngine()
    async with scheduling(engine) as scheduler, AsyncExitStack() as stack:
        lasting = asyncio.create_task(decode(scheduler, "a", 900))
        await until(lambda: len(engine.batches) > 1)
        await stack.enter_async_context(admitted(scheduler, "b", 1, limit=100))
        outcome = await scheduler.verify(replace(make_row("b", (0,), limit=100), draft=point_mass(*continuation(0, 2))))
        assert outcome.verdict.tokens == continuation(0, 3)
        await steps()
        assert await lasting == continuation(3, 900)
