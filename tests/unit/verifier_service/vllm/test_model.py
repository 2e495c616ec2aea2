"""Steps over vLLM's engine: admission, running sequences, results, and errors that end the process."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from specdec.engine.kv.pool import KvMemory
from specdec.errors import InternalError
from specdec.rules.draft import Draft, Verdict
from tests.unit.verifier_service.verifier_fakes import make_row
from verifier_service.backends.batch_plan import HeadDraft, HeadUse, Outcome, Row
from verifier_service.backends.model_step import TargetLost
from verifier_service.vllm.batch import ComputedPiece, Judged
from verifier_service.vllm.head.drafts import VllmHead
from verifier_service.vllm.model import VllmModel

BLOCK = 16
BLOCKS = 8


@dataclass
class WrittenScheduler:
    """Stands for the scheduler in vLLM's engine, with verdicts that the test writes."""

    free_tokens: int = BLOCK * BLOCKS
    block_size: int = BLOCK
    max_num_running_reqs: int = 2
    preempted: int = 0
    rows: Mapping[str, Row] = field(default_factory=dict)
    pieces: dict[str, ComputedPiece] = field(default_factory=dict)
    judged: dict[str, Judged] = field(default_factory=dict)
    running: list[str] = field(default_factory=list)
    kv_cache_config: Any = field(default_factory=lambda: SimpleNamespace(kv_cache_tensors=[SimpleNamespace(size=1000)]))
    kv_cache_manager: Any = field(default_factory=lambda: SimpleNamespace(usage=0.25))
    vocab_size: int = 0
    blocks: Any = None
    loads: bool = False
    states: Any = None

    def cached(self, request: str) -> int:
        return BLOCK


class WrittenEngine:
    """An engine whose passes commit one token for each row."""

    def __init__(self) -> None:
        self.scheduler = WrittenScheduler()
        self.engine_core = SimpleNamespace(engine_core=self, get_output=self.step)
        self.vllm_config = SimpleNamespace(cache_config=SimpleNamespace(num_gpu_blocks=BLOCKS))
        self.aborted: list[str] = []
        self.steps = 0
        self.seen: Mapping[str, Row] = {}
        """Rows of the last pass."""
        self.makes_room = False
        self.loading = 0
        """Number of passes for which the rows wait for KV that is loaded."""
        self.error: Exception | None = None
        self.result: Verdict | InternalError = Verdict((7,), 0, 0)

    def abort_request(self, requests: list[str], internal: bool) -> None:
        self.aborted += requests

    def step(self) -> None:
        self.steps += 1
        if self.error is not None:
            raise self.error
        if self.makes_room:
            self.makes_room = False
            self.scheduler.preempted += 1
            self.scheduler.pieces, self.scheduler.judged = {}, {}
            return
        self.scheduler.loads = self.loading > 0
        if self.loading:
            self.loading -= 1
            self.scheduler.pieces, self.scheduler.judged = {}, {}
            return
        self.seen = rows = self.scheduler.rows
        self.scheduler.pieces = {request: ComputedPiece(row.goal - 1, 1, 2) for request, row in rows.items()}
        self.scheduler.judged = {request: Judged(self.result, 2) for request in rows}


def made(engine: WrittenEngine) -> VllmModel:
    return VllmModel(engine, 8, lambda row: f"{row.kv_name}!")


def test_a_sequence_comes_in_and_its_rows_are_judged() -> None:
    engine = WrittenEngine()
    model, admission, row = made(engine), make_row("a", goal=0), make_row("a", draft=Draft((1, 2)))
    first = model.step([], [admission])
    assert (first.results, first.found, first.queried, engine.steps) == ({admission: None}, {"a": BLOCK}, 3, 0)
    done = model.step([], [row])
    outcome = done.results[row]
    assert isinstance(outcome, Outcome)
    assert (outcome.verdict.tokens, outcome.offered) == ((7,), 2)
    assert [(chunk.start, chunk.count, chunk.drafts) for chunk in done.chunks] == [(2, 1, 2)]
    assert (done.memory.budget, done.memory.live) == (1000, 250)


class WrittenHead:
    """A head that drafts one token for every row that requests a draft."""

    step_seconds = 0.5
    memory = KvMemory(10, 5, 1)

    def __init__(self) -> None:
        self.left: list[str] = []
        self.taken: list[Any] = []

    def drafted(self, rows: Mapping[str, Row]) -> dict[str, HeadDraft]:
        return {request: HeadDraft(Draft((7,)), 0.1) for request, row in rows.items() if row.head.gamma}

    def take(self, *given: Any) -> None:
        self.taken.append(given)

    def leave(self, kv_name: str) -> None:
        self.left.append(kv_name)


def test_a_head_drafts_for_the_rows_that_ask_and_takes_the_states() -> None:
    engine, head = WrittenEngine(), WrittenHead()
    model = VllmModel(engine, 8, lambda row: f"{row.kv_name}!", cast("VllmHead", head))
    model.step([], [make_row(name, goal=0) for name in "ab"])
    rows = [replace(make_row("a"), head=HeadUse(follows=True, gamma=1)), make_row("b")]
    done = model.step([], rows)
    assert [row.draft.tokens for row in engine.seen.values()] == [(7,), ()]
    made = [each.drafted for row in rows if isinstance(each := done.results[row], Outcome)]
    assert [each and (each.draft.tokens, each.seconds) for each in made] == [((7,), 0.1), None]
    assert [given[0] for given in head.taken] == [{"a!": rows[0], "b!": rows[1]}]
    assert (done.memory.budget, done.memory.live, model.head_step) == (1010, 255, 0.5)
    model.step(["a"], [])
    assert head.left == ["a"]


def test_a_prefill_is_done_at_once_for_vllm_cuts_prompts_itself() -> None:
    engine = WrittenEngine()
    model, prefill = made(engine), make_row("a", goal=2)
    model.step([], [make_row("a", goal=0)])
    assert model.step([], [prefill]).results == {prefill: None}
    assert engine.steps == 0


def test_who_is_let_in_takes_part_in_the_next_pass() -> None:
    engine = WrittenEngine()
    model, admission, rows = made(engine), make_row("b", goal=0), [make_row("a"), make_row("b")]
    model.step([], [make_row("a", goal=0)])
    step = model.step([], [rows[0], admission])
    assert (step.results, step.chunks, engine.steps) == ({admission: None}, [], 0)
    assert (list(model.step([], rows).results), engine.steps) == (rows, 1)


def test_sequences_wait_for_a_place_and_for_room_in_the_order_of_the_rows() -> None:
    engine = WrittenEngine()
    model, rows = made(engine), [make_row(name, goal=0) for name in "abc"]
    assert list(model.step([], rows).results) == rows[:2]
    engine.scheduler.free_tokens = 2
    assert not model.step(["a"], rows[2:]).results
    assert engine.aborted == ["a!"]
    assert list(model.step(["b"], rows[2:]).results) == rows[2:]


def test_a_sequence_that_vllm_refuses_is_an_error_of_its_own() -> None:
    def refuse(row: Row) -> str:
        raise ValueError("too long")

    admission = make_row("a", goal=0)
    assert isinstance(VllmModel(WrittenEngine(), 8, refuse).step([], [admission]).results[admission], InternalError)


def test_a_pass_that_only_made_room_is_followed_by_another() -> None:
    engine = WrittenEngine()
    model, row = made(engine), make_row("a")
    model.step([], [make_row("a", goal=0)])
    engine.makes_room = True
    done = model.step([], [row])
    assert (engine.steps, done.preempted) == (2, 1)
    assert isinstance(done.results[row], Outcome)


def test_the_error_of_a_row_is_its_own() -> None:
    engine = WrittenEngine()
    model, row = made(engine), make_row("a")
    model.step([], [make_row("a", goal=0)])
    engine.result = InternalError("no")
    assert model.step([], [row]).results[row] is engine.result


def test_a_failed_step_ends_the_target() -> None:
    engine = WrittenEngine()
    model = made(engine)
    model.step([], [make_row("a", goal=0)])
    engine.error = RuntimeError("out of memory")
    with pytest.raises(TargetLost):
        model.step([], [make_row("a")])


def test_what_fits_into_an_empty_engine_is_known_beforehand() -> None:
    assert made(WrittenEngine()).most_tokens == BLOCK * BLOCKS


def test_a_pass_waits_for_kv_that_is_loaded_alone() -> None:
    engine = WrittenEngine()
    model, row = made(engine), make_row("a")
    model.step([], [make_row("a", goal=0)])
    engine.loading = 3
    assert isinstance(model.step([], [row]).results[row], Outcome)
    assert (engine.steps, engine.scheduler.preempted) == (4, 0)


def test_other_work_ends_the_wait_for_kv() -> None:
    engine = WrittenEngine()
    model, row = made(engine), make_row("a")
    model.step([], [make_row("a", goal=0)])
    engine.loading = 10**9
    model.flags.stop()
    assert not model.step([], [row]).results
    assert engine.steps == 1


def test_blocks_are_copied_while_no_row_waits() -> None:
    engine = WrittenEngine()
    engine.scheduler.blocks = SimpleNamespace(busy=False)
    model = made(engine)
    assert not model.copy_blocks()
    assert engine.steps == 0
    engine.scheduler.blocks.busy = True
    assert model.copy_blocks()
    assert engine.steps == 1
    engine.error = RuntimeError("out of memory")
    with pytest.raises(TargetLost):
        model.copy_blocks()
