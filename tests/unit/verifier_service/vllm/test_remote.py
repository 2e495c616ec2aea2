"""A target in another process is told of rows, and what it does comes back; here it is a thread of this one."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from pathlib import Path
from threading import Thread
from typing import Any, cast

import pytest
import torch

from specdec.errors import ConfigError, InternalError
from specdec.grammar.state import GrammarState
from specdec.rules.draft import Draft, SparseProbs
from specdec.rules.params import SamplingParams
from specdec.serving.settings import ModelSettings
from tests.unit.verifier_service.verifier_fakes import TableEngine, continuation, make_row, point_mass
from verifier_service.batching.batch_plan import Outcome, Row
from verifier_service.batching.model_step import ModelStep, TargetLost
from verifier_service.batching.model_thread import ModelThread
from verifier_service.config import VerifierSettings
from verifier_service.vllm.child import serve
from verifier_service.vllm.remote import RemoteModel, open_target
from verifier_service.vllm.shared_told import SharedTold, shared_memory

SETTINGS = VerifierSettings(model=ModelSettings(path=Path("model")))
ONLY_FIVE = b"\x20".ljust(8, b"\0")
"""A mask of ids below 16."""


class SeenModel(ModelThread):
    """Remembers its rows, with the tokens of their time."""

    def __init__(self, engine: TableEngine) -> None:
        super().__init__(engine, SETTINGS)
        self.seen: list[list[Row]] = []

    def step(self, ended: Sequence[str], rows: Sequence[Row]) -> ModelStep:
        self.seen.append([replace(row, tokens=tuple(row.tokens)) for row in rows])
        return super().step(ended, rows)


@dataclass
class Pair:
    """The model as the verifier sees it, and what runs it."""

    remote: RemoteModel
    model: SeenModel
    engine: TableEngine
    passes: list[tuple[ModelStep, Sequence[Row]]]

    def run(self, *rows: Row, ended: Sequence[str] = ()) -> ModelStep:
        return self.remote.run(ended, rows, lambda *seen: self.passes.append(cast("Any", seen)))

    def admit(self, *names: str) -> None:
        self.run(*(make_row(name, (3,), 0) for name in names))


@pytest.fixture
def pair() -> Iterator[Pair]:
    with served() as made:
        yield made


@contextmanager
def served() -> Iterator[Pair]:
    ours, theirs = Pipe()
    memory, engine = shared_memory(), TableEngine()
    model = SeenModel(engine)
    thread = Thread(target=serve, args=(theirs, model, SharedTold(memory)))
    thread.start()
    process = cast("subprocess.Popen[bytes]", None)
    yield Pair(RemoteModel(process, ours, SharedTold(memory), 100), model, engine, [])
    ours.close()
    thread.join()
    os.close(memory)


def test_it_admits_what_fits_into_an_empty_engine(pair: Pair) -> None:
    assert pair.remote.can_ever_admit(100)
    assert not pair.remote.can_ever_admit(101)


def test_a_step_comes_back_with_the_rows_that_it_was_asked_for(pair: Pair) -> None:
    admission = make_row("a", (3,), 0)
    step = pair.run(admission)
    assert (step.results, step.running, step.queried, step.found) == ({admission: None}, 1, 1, {"a": 0})
    row = make_row("a", (3,))
    step = pair.run(row)
    outcome = step.results[row]
    assert isinstance(outcome, Outcome)
    assert (outcome.verdict.tokens, outcome.offered, outcome.started) == (continuation(3, 1), 0, step.started)
    assert [(chunk.row, chunk.start, chunk.count) for chunk in step.chunks] == [(row, 0, 1)]
    assert step.seconds > 0.0
    assert step.memory == pair.engine.memory


def test_only_new_tokens_travel_and_all_arrive(pair: Pair) -> None:
    pair.admit("a")
    tokens = [3, *continuation(3, 1)]
    pair.run(make_row("a", (3,)))
    pair.run(make_row("a", tokens))
    assert [row.tokens for rows in pair.model.seen for row in rows] == [(3,), (3,), tuple(tokens)]
    assert [row.call for rows in pair.model.seen for row in rows] == [make_row("a").call] * 3


def test_a_sequence_that_comes_again_is_a_new_one(pair: Pair) -> None:
    pair.admit("a")
    pair.run(ended=["a"])
    assert pair.engine.held == {}
    pair.run(make_row("a", (5, 6), 0))
    assert pair.model.seen[-1][0].tokens == (5, 6)


def test_drafts_arrive_with_their_probabilities(pair: Pair) -> None:
    pair.admit("a")
    truth = continuation(3, 3)
    two = SparseProbs(torch.tensor([2, truth[1]]), torch.tensor([7, 65535]))
    row = make_row("a", (3,), draft=Draft(truth[:2], (point_mass(truth[0]).probs[0], two)))
    outcome = pair.run(row).results[row]
    assert isinstance(outcome, Outcome)
    assert (outcome.verdict.tokens, outcome.offered) == (truth, 2)
    arrived = pair.model.seen[-1][0].draft
    assert isinstance(arrived, Draft)
    assert [(each.ids.tolist(), each.weights.tolist()) for each in arrived.probs] == [
        (each.ids.tolist(), each.weights.tolist()) for each in cast("Draft", row.draft).probs
    ]


def test_log_probabilities_come_back(pair: Pair) -> None:
    pair.run(make_row("a", (3,), 0, logprobs=2))
    row = make_row("a", (3,), logprobs=2)
    outcome = pair.run(row).results[row]
    assert isinstance(outcome, Outcome)
    assert len(outcome.verdict.logprobs[0].top) == 2


def test_a_row_that_fails_comes_back_with_its_error(pair: Pair) -> None:
    pair.admit("a")
    pair.engine.nan.add("a")
    row = make_row("a", (3,))
    assert isinstance(pair.run(row).results[row], InternalError)


def test_passes_follow_one_another_until_nobody_has_asked(pair: Pair) -> None:
    pair.admit("a")
    first = replace(make_row("a", (3,)), runs_ahead=True)
    last = pair.run(first)
    ((step, (second,)),) = pair.passes
    assert first in step.results
    assert second.tokens == (3, *continuation(3, 1))
    outcome = last.results[second]
    assert isinstance(outcome, Outcome)
    assert outcome.verdict.tokens == continuation(3, 2)[1:]


@pytest.mark.parametrize(("stopped", "passes"), [(False, 2), (True, 1)])
def test_what_is_asked_and_what_stops_is_read_from_shared_memory(stopped: bool, passes: int, pair: Pair) -> None:
    pair.admit("a")
    pair.remote.told.ask(replace(make_row("a", (3, 10))))  # the row behind the next one, before it is under way
    if stopped:
        pair.remote.told.stop()
    pair.run(replace(make_row("a", (3,)), runs_ahead=True))
    assert len(pair.passes) == passes - 1 + (not stopped)


def test_a_row_that_is_sent_again_before_anybody_asked_for_it_is_not_followed(pair: Pair) -> None:
    pair.admit("a")
    row = replace(make_row("a", (3,)), runs_ahead=True, unasked=True)
    assert row in pair.run(row).results
    assert pair.passes == []


def newcomer(name: str) -> Row:
    return replace(make_row(name, (5,), 0, limit=200), runs_ahead=True)


class Asking:
    """Asks for every row that is under way, and does something behind the first step."""

    def __init__(self, pair: Pair, at_first: Callable[[], None] = lambda: None) -> None:
        self.pair, self.at_first = pair, at_first
        self.steps: list[ModelStep] = []

    def run(self, *rows: Row) -> None:
        self.steps.append(self.pair.remote.run((), rows, self._passed))

    def _passed(self, step: ModelStep, following: Sequence[Row]) -> None:
        self.steps.append(step)
        for row in following:
            if row.unasked and row.kv_name in self.pair.remote._sent:  # one that has ended may have had a part in it
                self.pair.remote.told.ask(row)
        if len(self.steps) == 1:
            self.at_first()

    def tokens(self, name: str) -> tuple[int, ...]:
        results = (item for step in self.steps for item in step.results.items())
        outcomes = [result for row, result in results if row.kv_name == name and isinstance(result, Outcome)]
        return tuple(token for outcome in outcomes for token in outcome.verdict.tokens)


def test_who_comes_and_who_ends_in_a_run_is_taken_between_two_passes(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.admit("a", "c")
    monkeypatch.setattr(pair.model.told, "asked", lambda _: True)

    def change() -> None:
        pair.remote.join((), [newcomer("b")])
        pair.remote.join(["c"], ())

    asking = Asking(pair, change)
    asking.run(*(replace(make_row(name, (3,), limit=200), runs_ahead=True) for name in "ac"))
    assert asking.tokens("a") == continuation(3, 199)
    assert asking.tokens("b") == continuation(5, 199)
    assert set(pair.engine.held) == {"a", "b"}
    assert pair.remote._joining == {}


def test_what_comes_behind_the_last_step_waits_for_the_next_order(pair: Pair) -> None:
    pair.admit("a", "c")
    pair.remote.join(["c"], [newcomer("b"), newcomer("d")])
    own, asking = newcomer("d"), Asking(pair)
    asking.run(own, replace(make_row("a", (3,)), runs_ahead=True))
    assert own in asking.steps[0].results
    assert asking.tokens("b")
    assert set(pair.engine.held) == {"a", "b", "d"}
    assert pair.remote._joining == {}


def test_a_row_that_joined_and_whose_sequence_ended_is_forgotten(pair: Pair) -> None:
    pair.admit("a")
    pair.remote.join((), [newcomer("b")])
    pair.run(make_row("a", (3,)), ended=["b"])
    assert pair.remote._joining == {}
    assert set(pair.engine.held) == {"a"}


def test_who_ends_before_an_order_with_its_row_was_sent_has_no_part_in_it(pair: Pair) -> None:
    pair.admit("a", "b")
    pair.remote.join(["b"], ())
    left, row = make_row("b", (3,)), make_row("a", (3,))
    step = pair.run(left, row)
    assert (set(step.results), set(pair.engine.held), set(pair.remote._sent)) == ({row}, {"a"}, {"a"})


class WrittenState:
    """Stands where every id below its limit may follow, or fails."""

    def __init__(self, *masks: bytes | None) -> None:
        self._masks = masks

    def masks(self, output: Sequence[int], drafts: Sequence[int] = ()) -> list[bytes | None]:
        if not self._masks:
            raise RuntimeError("a bug")
        return list(self._masks)


def of_grammar(*masks: bytes | None, draft: Draft | None = None) -> Row:
    row = make_row("a", (3,), draft=draft or Draft(), sampling=SamplingParams(temperature=0.0), prompt_len=1)
    return replace(row, grammar=cast("GrammarState", WrittenState(*masks)))


def test_the_masks_of_a_grammar_hold_there(pair: Pair) -> None:
    pair.admit("a")
    row = of_grammar(ONLY_FIVE, None, draft=point_mass(5))
    outcome = pair.run(row).results[row]
    assert isinstance(outcome, Outcome)
    assert outcome.verdict.tokens[0] == 5
    seen = pair.model.seen[-1][0].grammar
    assert seen is not None
    assert seen.masks((), ()) == [ONLY_FIVE]


def test_a_grammar_that_fails_fails_its_own_row(pair: Pair) -> None:
    pair.admit("a", "b")
    bad, good = of_grammar(), make_row("b", (3,))
    results = pair.run(bad, good).results
    assert isinstance(results[bad], InternalError)
    assert isinstance(results[good], Outcome)


def test_a_process_that_is_lost_is_a_lost_target(pair: Pair) -> None:
    pair.remote._connection.close()
    with pytest.raises(TargetLost):
        pair.admit("a")


async def test_a_process_that_ends_while_nothing_runs_is_noticed() -> None:
    memory, (ours, _) = shared_memory(), Pipe()
    with subprocess.Popen([sys.executable, "-c", ""]) as process:  # noqa: ASYNC220 - the model has such a one
        async with asyncio.timeout(60):
            with pytest.raises(TargetLost, match="ended with 0"):
                await RemoteModel(process, ours, SharedTold(memory), 1).watch()
    os.close(memory)


def test_an_environment_without_vllm_is_refused_by_name(tmp_path: Path) -> None:
    settings = VerifierSettings(model=ModelSettings(path=tmp_path), backend="vllm")
    with pytest.raises(ConfigError, match="vllm is not installed in this environment"):
        open_target(settings)
